-- A run holds its job for :lease milliseconds more, by the database's clock. A lease that has ended is never held again: others
-- may have begun to take the job over. :token, :lease
UPDATE jobs
SET lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + :lease
WHERE token = :token
  AND lease_until > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
RETURNING state, cancel_at
