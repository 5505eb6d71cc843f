-- How many jobs of a queue a worker could claim, counted to :limit: those that are due, format by format, and those whose
-- time has come; none while the queue is paused, which is looked at first (CROSS JOIN keeps the order): a condition that names
-- no row would be asked for each of them. :queue, :formats (JSON object), :now, :horizon, :limit
WITH open AS (
    SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
)
SELECT count(*)
FROM (
    SELECT 1
    FROM open
    CROSS JOIN json_each(:formats) AS formats
    CROSS JOIN jobs AS due ON due.queue = :queue AND due.format = formats.key AND due.state = 0 AND due.due_at IS NULL
    WHERE NOT EXISTS (SELECT 1 FROM jobs AS base WHERE base.filename = due.base_filename AND base.state IN (0, 1))
    UNION ALL
    SELECT 1
    FROM open
    CROSS JOIN jobs AS later INDEXED BY jobs_later
    WHERE state = 0
      AND due_at IS NOT NULL
      AND (due_at <= :now OR due_at > :horizon)
      AND queue = :queue
      AND format IN (SELECT key FROM json_each(:formats))
      AND NOT EXISTS (SELECT 1 FROM jobs AS base WHERE base.filename = later.base_filename AND base.state IN (0, 1))
    LIMIT :limit
)
