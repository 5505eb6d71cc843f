-- New jobs of a bounded queue that is far from its bound may come at once, but not while somebody has his turn alone. :queue
SELECT pg_advisory_xact_lock_shared(hashtextextended(:queue, 4558505103))
