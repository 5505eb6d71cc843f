-- How many jobs of a queue a worker could claim, counted to :limit: those that are due, format by format (one look into
-- jobs_heads each, also where there are none), and those whose time has come; none while the queue is paused. The latter are
-- found before their queue is looked at: by that the planner may walk through the whole queue.
-- :queue, :formats, :now, :horizon, :limit
WITH later AS MATERIALIZED (
    SELECT queue, format, base_filename
    FROM jobs
    WHERE state = 0
      AND due_at IS NOT NULL
      AND (due_at <= :now OR due_at > :horizon)
)
SELECT count(*) AS counted
FROM (
    SELECT 1
    FROM unnest(:formats) AS wanted (format)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM jobs AS due
        WHERE due.state = 0
          AND due.due_at IS NULL
          AND (due.queue || '/' || due.format) = :queue || '/' || wanted.format
          AND (due.base_filename IS NULL
               OR NOT coalesce((SELECT base.state < 2 FROM jobs AS base WHERE base.filename = due.base_filename), false))
        ORDER BY due.rank, due.id
        LIMIT :limit) AS heads
    WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
    UNION ALL
    SELECT 1
    FROM later
    WHERE queue = :queue
      AND format = ANY (:formats)
      AND NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
      AND (base_filename IS NULL
           OR NOT coalesce((SELECT base.state < 2 FROM jobs AS base WHERE base.filename = later.base_filename), false))
    LIMIT :limit
) AS claimable
