-- Jobs in the order in which they would start, started ones first, failed ones last. :state, :queue, :format (each NULL
-- for any), :limit (NULL for all)
SELECT id, title, lang, font, format, options, filename, base_filename, queue, client, meta, priority, rank, state,
       submitted_at, newer_than, due_at, waits_for, token, last_run, slot, worker, started_at, deadline_at, progress,
       finished_at, reason, detail, cancel_at, attempts, retries, interruptions, stops, base_waits
FROM jobs
WHERE (:state IS NULL OR state = :state)
  AND (:queue IS NULL OR queue = :queue)
  AND (:format IS NULL OR format = :format)
ORDER BY CASE state WHEN 1 THEN 0 WHEN 0 THEN 1 ELSE 2 END, queue, rank, id
LIMIT :limit
