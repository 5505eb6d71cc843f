-- Asks the worker of a started job to end it. :id, :now
UPDATE jobs
SET cancel_at = :now
WHERE id = :id
  AND state = 1
