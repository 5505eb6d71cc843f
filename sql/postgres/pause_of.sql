-- Whether a queue is paused, and with which message. :queue
SELECT paused_at, message
FROM queues
WHERE name = :queue
  AND paused_at IS NOT NULL
