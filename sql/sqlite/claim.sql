-- Claims the due job with the lowest rank among the formats that can be made here, for the worker that will do it.
-- :formats is a JSON object, format to time limit in milliseconds. The head of each format is one look into jobs_due, so
-- the cost does not grow with the depth of the queue. A derived job is not due while a row of its base is live, and nothing
-- while the queue is paused. A run begins
-- after the refresh that it serves, also where :now was read before a wait for the write lock or the clock was set back.
WITH heads AS (
    SELECT formats.value AS timeout,
           (SELECT due.id
            FROM jobs AS due
            WHERE due.state = 0
              AND due.due_at IS NULL
              AND due.queue = :queue
              AND due.format = formats.key
              AND NOT EXISTS (SELECT 1 FROM jobs AS base
                              WHERE base.filename = due.base_filename AND base.state IN (0, 1))
            ORDER BY due.rank, due.id
            LIMIT 1) AS id
    FROM json_each(:formats) AS formats
    WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
),
next AS (
    SELECT heads.id, heads.timeout
    FROM heads
    JOIN jobs AS head ON head.id = heads.id
    ORDER BY head.rank, head.id
    LIMIT 1
)
UPDATE jobs
SET state = 1, token = :token, last_run = :token, node = :node, slot = :slot, worker = :worker,
    started_at = max(:now, coalesce(newer_than, 0)), deadline_at = :now + next.timeout, progress = NULL, attempts = attempts + 1
FROM next
WHERE jobs.id = next.id
  AND jobs.state = 0
RETURNING jobs.id
