-- How many jobs of a queue a worker could claim, counted to :limit: those that are due, format by format, and those whose
-- time has come; none while the queue is paused. :queue, :formats, :now, :horizon, :limit
SELECT count(*) AS counted
FROM (
    SELECT 1
    FROM jobs AS due
    WHERE state = 0
      AND due_at IS NULL
      AND queue = :queue
      AND format = ANY (:formats)
      AND NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
      AND (base_filename IS NULL
           OR NOT EXISTS (SELECT 1 FROM jobs AS base WHERE base.filename = due.base_filename AND base.state IN (0, 1)))
    UNION ALL
    SELECT 1
    FROM jobs AS later
    WHERE state = 0
      AND due_at IS NOT NULL
      AND (due_at <= :now OR due_at > :horizon)
      AND queue = :queue
      AND format = ANY (:formats)
      AND NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
      AND (base_filename IS NULL
           OR NOT EXISTS (SELECT 1 FROM jobs AS base WHERE base.filename = later.base_filename AND base.state IN (0, 1)))
    LIMIT :limit
) AS claimable
