-- How many jobs of a queue are started. :queue
SELECT count(*)
FROM jobs
WHERE state = 1
  AND queue = :queue
