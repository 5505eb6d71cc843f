-- Failures of one state that are older than that. A row that still has a token is not touched. :state, :before
DELETE FROM jobs
WHERE state = :state
  AND state >= 2
  AND token IS NULL
  AND finished_at < :before
