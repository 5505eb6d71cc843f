-- Claims the due job with the lowest rank among the formats that can be made here, for the worker that will do it. The heads
-- of each format are one look into jobs_heads, so the cost does not grow with the depth of the queue; a head that another
-- claim holds is stepped over, and where sixteen are held at once there is nothing for now. A derived job is not due while a
-- row of its base is live (looked up row by row: the planner would hash all live rows for an EXISTS), and nothing while the
-- queue is paused. A head is looked up by its id and found still waiting by what a waiting row lacks: asked for its state, the
-- planner of a table that it does not know yet goes through an index of all that wait, for each head. A run begins after the
-- refresh that it serves. The lease is by the database's clock. :queue, :formats and :timeouts (milliseconds, in the same
-- order), :token, :node, :slot, :worker, :now, :lease (milliseconds)
WITH candidates AS MATERIALIZED (
    SELECT due.id, due.rank, wanted.timeout
    FROM unnest(:formats, :timeouts) AS wanted (format, timeout)
    CROSS JOIN LATERAL (
        SELECT jobs.id, jobs.rank
        FROM jobs
        WHERE jobs.state = 0
          AND jobs.due_at IS NULL
          AND (jobs.queue || '/' || jobs.format) = :queue || '/' || wanted.format
          AND (jobs.base_filename IS NULL
               OR NOT coalesce((SELECT base.state < 2 FROM jobs AS base WHERE base.filename = jobs.base_filename), false))
        ORDER BY jobs.rank, jobs.id
        LIMIT 16) AS due
    WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
),
next AS (
    SELECT head.id, candidates.timeout
    FROM candidates
    JOIN jobs AS head ON head.id = candidates.id
    WHERE head.token IS NULL
      AND head.finished_at IS NULL
      AND head.waits_for IS NULL
    ORDER BY candidates.rank, candidates.id
    LIMIT 1
    FOR UPDATE OF head SKIP LOCKED
)
UPDATE jobs
SET state = 1, token = :token, last_run = :token, node = :node, slot = :slot, worker = :worker,
    started_at = greatest(:now, newer_than), deadline_at = :now + next.timeout, progress = NULL, attempts = attempts + 1,
    lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + :lease
FROM next
WHERE jobs.id = next.id
RETURNING jobs.id
