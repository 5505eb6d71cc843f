-- New jobs of a bounded queue come one transaction after the other from here on, so that its bound is exact. :queue
SELECT pg_advisory_xact_lock(hashtextextended(:queue, 4558505103))
