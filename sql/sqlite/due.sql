-- How many jobs of a queue a worker could claim, counted to :limit: those that are due, format by format, and those whose
-- time has come; none while the queue is paused. :queue, :formats (JSON object), :now, :horizon, :limit
SELECT count(*)
FROM (
    SELECT 1
    FROM json_each(:formats) AS formats
    JOIN jobs AS due ON due.queue = :queue AND due.format = formats.key AND due.state = 0 AND due.due_at IS NULL
    WHERE NOT EXISTS (SELECT 1 FROM jobs AS base WHERE base.filename = due.base_filename AND base.state IN (0, 1))
      AND NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
    UNION ALL
    SELECT 1
    FROM jobs AS later
    WHERE state = 0
      AND due_at IS NOT NULL
      AND (due_at <= :now OR due_at > :horizon)
      AND queue = :queue
      AND format IN (SELECT key FROM json_each(:formats))
      AND NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
      AND NOT EXISTS (SELECT 1 FROM jobs AS base WHERE base.filename = later.base_filename AND base.state IN (0, 1))
    LIMIT :limit
)
