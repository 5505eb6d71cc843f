-- The formats of the due jobs of a queue that go before one, in their order, the first 1000. :queue, :rank, :id
SELECT format
FROM jobs
WHERE state = 0
  AND due_at IS NULL
  AND queue = :queue
  AND (rank, id) < (:rank, :id)
ORDER BY rank, id
LIMIT 1000
