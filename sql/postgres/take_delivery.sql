-- What is to be told next to one of these listeners, the longest due first, for whoever takes it: until :until it is not due to
-- anybody else. A time further ahead than any back-off reaches (:horizon) counts as reached: the clock was set back.
-- :listeners, :now, :horizon, :until
WITH next AS (
    SELECT id
    FROM deliveries
    WHERE listener = ANY (:listeners)
      AND due_at IS NOT NULL
      AND (due_at <= :now OR due_at > :horizon)
    ORDER BY due_at, id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE deliveries
SET due_at = :until
FROM next
WHERE deliveries.id = next.id
RETURNING deliveries.id, listener, job_id, title, lang, font, format, options, filename, client, meta, attempts, outcome,
          reason, detail, happened_at, since, due_at, tries, error
