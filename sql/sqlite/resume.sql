-- The queue goes on. :queue
DELETE FROM queues
WHERE name = :queue
  AND paused_at IS NOT NULL
