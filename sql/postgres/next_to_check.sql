-- The run of one of these formats whose file is there and whose fingerprint was not compared for the longest,
-- if that is before :before (or after :horizon, by a clock that was wrong). :formats, :before, :horizon
SELECT token, job_id, title, lang, font, format, options, filename, queue, client, meta, outcome, reason, detail,
       submitted_at, started_at, finished_at, published_at, bytes, exit_code, signal, peak_memory, cpu_millis, fingerprint
FROM runs
WHERE present = 1
  AND fingerprint IS NOT NULL
  AND format = ANY (:formats)
  AND (coalesce(checked_at, finished_at) <= :before OR coalesce(checked_at, finished_at) > :horizon)
ORDER BY coalesce(checked_at, finished_at)
LIMIT 1
