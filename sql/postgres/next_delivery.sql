-- What is to be told next to one of these listeners, the longest due first. A time further ahead than any
-- back-off reaches (:horizon) counts as reached: the clock was set back. :listeners, :now, :horizon
SELECT id, listener, job_id, title, lang, font, format, options, filename, client, meta, attempts, outcome, reason, detail,
       happened_at, since, due_at, tries, error
FROM deliveries
WHERE listener = ANY (:listeners)
  AND due_at IS NOT NULL
  AND (due_at <= :now OR due_at > :horizon)
ORDER BY due_at, id
LIMIT 1
