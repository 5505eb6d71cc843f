-- Jobs that no worker has and whose file was published since :since and since they were asked for. :since
SELECT jobs.id, jobs.filename
FROM runs
JOIN jobs ON jobs.filename = runs.filename
WHERE runs.present = 1
  AND runs.published_at >= :since
  AND jobs.state <> 1
  AND jobs.token IS NULL
  AND runs.published_at >= greatest(jobs.submitted_at, jobs.newer_than)
