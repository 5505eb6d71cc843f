-- Batches go one after another: two that hold the same lines in another order would wait for each other.
SELECT pg_advisory_xact_lock(4558505102)
