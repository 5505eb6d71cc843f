-- The jobs for some files, in an order that is the same for everybody; they stay as they are until this transaction ends.
-- :filenames
SELECT id, title, lang, font, format, options, filename, base_filename, queue, client, meta, priority, rank, state,
       submitted_at, newer_than, due_at, waits_for, token, last_run, slot, worker, started_at, deadline_at, progress,
       finished_at, reason, detail, cancel_at, attempts, retries, interruptions, stops, base_waits
FROM jobs
WHERE filename = ANY (:filenames)
ORDER BY filename
FOR UPDATE
