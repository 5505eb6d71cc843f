-- More callers for live jobs, as join.sql for each; none of them raises a priority. :rows (a JSON list of objects)
UPDATE jobs
SET newer_than = CASE WHEN jobs.cancel_at IS NOT NULL THEN line.submitted_at ELSE coalesce(line.newer_than, jobs.newer_than) END,
    due_at     = CASE WHEN jobs.waits_for = 'not_before' AND line.due_at IS NULL THEN NULL
                      WHEN jobs.waits_for = 'not_before' THEN least(jobs.due_at, line.due_at)
                      ELSE jobs.due_at END,
    waits_for  = CASE WHEN jobs.waits_for = 'not_before' AND line.due_at IS NULL THEN NULL ELSE jobs.waits_for END,
    wait_until = CASE WHEN jobs.wait_until IS NULL OR line.wait_until IS NULL THEN NULL
                      ELSE greatest(jobs.wait_until, line.wait_until) END
FROM json_populate_recordset(NULL::jobs, :rows::json) AS line
WHERE jobs.id = line.id
