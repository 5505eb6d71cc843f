-- What statistics need of the runs that ended since then, by the index of their ends. :since
SELECT format, lang, client, outcome, reason, submitted_at, started_at, finished_at, bytes, peak_memory, cpu_millis
FROM runs
WHERE finished_at >= :since
