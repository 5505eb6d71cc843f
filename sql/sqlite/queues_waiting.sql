-- The queues in which jobs wait, each once. From one queue to the next by jobs_place, however many jobs there are in each.
-- No parameters.
WITH RECURSIVE names AS (
    SELECT min(queue) AS queue FROM jobs WHERE state = 0
    UNION ALL
    SELECT (SELECT min(next.queue) FROM jobs AS next WHERE next.state = 0 AND next.queue > names.queue)
    FROM names
    WHERE names.queue IS NOT NULL
)
SELECT queue
FROM names
WHERE queue IS NOT NULL
