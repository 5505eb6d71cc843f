-- A queued job is not wanted any more. :id
DELETE FROM jobs
WHERE id = :id
  AND state = 0
