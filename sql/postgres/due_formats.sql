-- The formats that wait in a queue, each once, whether or not they can be made here. :queue
SELECT DISTINCT format
FROM jobs
WHERE state = 0
  AND due_at IS NULL
  AND queue = :queue
