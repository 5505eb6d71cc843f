-- What the exporter says of its progress. :token, :progress
UPDATE jobs
SET progress = :progress
WHERE token = :token
  AND state = 1
