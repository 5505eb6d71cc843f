-- Runs, the latest first. :since, :limit; :format, :lang, :client, :outcome (each NULL for any)
SELECT token, job_id, title, lang, font, format, options, filename, queue, client, meta, outcome, reason, detail,
       submitted_at, started_at, finished_at, published_at, bytes, exit_code, signal, peak_memory, cpu_millis, fingerprint
FROM runs
WHERE finished_at >= :since
  AND (:format IS NULL OR format = :format)
  AND (:lang IS NULL OR lang = :lang)
  AND (:client IS NULL OR client = :client)
  AND (:outcome IS NULL OR outcome = :outcome)
ORDER BY finished_at DESC, token
LIMIT :limit
