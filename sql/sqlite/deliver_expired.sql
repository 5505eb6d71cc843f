-- Notes for each listener the jobs that nobody waits for any more; in the transaction that fails them, before it does.
-- :listeners is a JSON list. :listeners, :now
INSERT INTO deliveries (listener, job_id, title, lang, font, format, options, filename, client, meta, attempts, outcome,
                        reason, detail, happened_at, since, due_at)
SELECT listeners.value, jobs.id, title, lang, font, format, options, filename, client, meta, attempts, 'failed_unknown',
       'wait_expired', 'nobody waits for it any more', :now, :now, :now
FROM jobs, json_each(:listeners) AS listeners
WHERE jobs.state = 0
  AND jobs.wait_until <= :now
