-- The run published, but began before a newer file was asked for: what it made does not count. :token, :published_at
UPDATE jobs
SET newer_than = greatest(newer_than, :published_at + 1)
WHERE token = :token
  AND state = 1
  AND newer_than IS NOT NULL
