-- The run failed and with it the job. :keep_token is true while processes of the run are left.
-- :token, :state, :reason, :detail, :now, :keep_token
UPDATE jobs
SET state = :state, reason = :reason, detail = :detail, finished_at = :now,
    token = CASE WHEN :keep_token THEN token END, cancel_at = NULL, progress = NULL,
    lease_until = CASE WHEN :keep_token THEN lease_until END
WHERE token = :token
  AND state = 1
