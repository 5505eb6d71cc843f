-- The queue goes on. Its row stays: claims under a bound over all nodes lock it. :queue
UPDATE queues
SET paused_at = NULL, message = NULL
WHERE name = :queue
  AND paused_at IS NOT NULL
