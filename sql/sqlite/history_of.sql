-- Runs for one file, the latest first. :filename, :limit
SELECT token, job_id, title, lang, font, format, options, filename, queue, client, meta, outcome, reason, detail,
       submitted_at, started_at, finished_at, published_at, bytes, exit_code, signal, peak_memory, cpu_millis
FROM runs
WHERE filename = :filename
ORDER BY finished_at DESC, token
LIMIT :limit
