-- A client's requests go one after another, so that its bound is exact; others do not wait. :queue, :client
SELECT pg_advisory_xact_lock(hashtextextended(:queue || chr(1) || :client, 4558505101))
