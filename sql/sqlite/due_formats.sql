-- The formats that wait in a queue, each once, whether or not they can be made here. From one format to the next by
-- jobs_due, however many jobs there are of each. :queue
WITH RECURSIVE formats AS (
    SELECT min(format) AS format FROM jobs WHERE state = 0 AND due_at IS NULL AND queue = :queue
    UNION ALL
    SELECT (SELECT min(next.format) FROM jobs AS next
            WHERE next.state = 0 AND next.due_at IS NULL AND next.queue = :queue AND next.format > formats.format)
    FROM formats
    WHERE formats.format IS NOT NULL
)
SELECT format
FROM formats
WHERE format IS NOT NULL
