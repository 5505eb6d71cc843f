-- A failure has been seen. A row that still has a token is not touched. :id
DELETE FROM jobs
WHERE id = :id
  AND state >= 2
  AND token IS NULL
