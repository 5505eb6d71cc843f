-- Whoever claims under a bound over all nodes counts and claims alone: the row of the queue is held until then. :queue
SELECT name
FROM queues
WHERE name = :queue
FOR UPDATE
