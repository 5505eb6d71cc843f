-- Jobs of other nodes whose lease has ended by the database's clock, by number, from the one after :after on.
-- :node, :after, :limit
SELECT id, title, lang, font, format, options, filename, base_filename, queue, client, meta, priority, rank, state,
       submitted_at, newer_than, due_at, waits_for, token, last_run, slot, worker, started_at, deadline_at, progress,
       finished_at, reason, detail, cancel_at, attempts, retries, interruptions, stops, base_waits
FROM jobs
WHERE token IS NOT NULL
  AND lease_until <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
  AND node <> :node
  AND id > :after
ORDER BY id
LIMIT :limit
