-- Notes for each listener that the run of a job ended; in the transaction that ends it, while its row is still there.
-- :token, :listeners, :outcome, :reason, :detail, :now
INSERT INTO deliveries (listener, job_id, title, lang, font, format, options, filename, client, meta, attempts, outcome,
                        reason, detail, happened_at, since, due_at)
SELECT listeners.value, jobs.id, title, lang, font, format, options, filename, client, meta, attempts, :outcome, :reason,
       :detail, :now, :now, :now
FROM jobs, unnest(:listeners) AS listeners (value)
WHERE jobs.token = :token
  AND jobs.state = 1
