-- Jobs that no worker has and whose file was published since :since and since they were asked for. The few files first
-- (CROSS JOIN keeps the order) by the index of last uses, of which none is before its publishing; and not by the index of
-- tokens (+), in which all queued jobs stand as NULL. :since
SELECT jobs.id, jobs.filename
FROM runs
CROSS JOIN jobs ON jobs.filename = runs.filename
WHERE runs.present = 1
  AND coalesce(runs.accessed_at, runs.published_at) >= :since
  AND runs.published_at >= :since
  AND jobs.state <> 1
  AND +jobs.token IS NULL
  AND runs.published_at >= max(jobs.submitted_at, coalesce(jobs.newer_than, 0))
