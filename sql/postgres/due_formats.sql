-- The formats that wait in a queue, each once, whether or not they can be made here: from one to the next by a look into
-- jobs_heads, however many jobs there are of each ('0' is what follows '/'). :queue
WITH RECURSIVE lanes AS (
    (SELECT queue || '/' || format AS lane, format
     FROM jobs
     WHERE state = 0
       AND due_at IS NULL
       AND (queue || '/' || format) > :queue || '/'
       AND (queue || '/' || format) < :queue || '0'
     ORDER BY (queue || '/' || format)
     LIMIT 1)
    UNION ALL
    SELECT next.lane, next.format
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT jobs.queue || '/' || jobs.format AS lane, jobs.format
        FROM jobs
        WHERE jobs.state = 0
          AND jobs.due_at IS NULL
          AND (jobs.queue || '/' || jobs.format) > lanes.lane
          AND (jobs.queue || '/' || jobs.format) < :queue || '0'
        ORDER BY (jobs.queue || '/' || jobs.format)
        LIMIT 1) AS next
)
SELECT format
FROM lanes
