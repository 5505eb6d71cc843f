-- The file is published: the job is fulfilled, unless a newer one was asked for since the run began. :token
DELETE FROM jobs
WHERE token = :token
  AND state = 1
  AND (newer_than IS NULL OR newer_than <= started_at)
