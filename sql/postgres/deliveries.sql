-- What was not told yet, and what was given up, the oldest first.
SELECT id, listener, job_id, title, lang, font, format, options, filename, client, meta, attempts, outcome, reason, detail,
       happened_at, since, due_at, tries, error
FROM deliveries
ORDER BY id
