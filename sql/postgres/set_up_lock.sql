-- Whoever sets up or migrates does it alone. The lock ends with the transaction, also with a killed process and behind a
-- pooler; its number means nothing but must not change.
SELECT pg_advisory_xact_lock(4558505100)
