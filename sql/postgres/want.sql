-- Marks a failed job whose processes are not gone yet as wanted again: whoever sees them gone queues it.
-- :id, :now
UPDATE jobs
SET wanted_at = :now
WHERE id = :id
  AND token IS NOT NULL
