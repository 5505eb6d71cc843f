-- What statistics need of the runs that ended since then, by the index of their ends, a page at a time: those after the one
-- that ended at :since with the token :after (empty for all). :since, :after
SELECT token, format, lang, client, outcome, reason, submitted_at, started_at, finished_at, bytes, peak_memory, cpu_millis
FROM runs
WHERE finished_at >= :since
  AND (finished_at > :since OR token > :after)
ORDER BY finished_at, token
LIMIT 10000
