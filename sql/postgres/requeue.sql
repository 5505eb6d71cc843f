-- The run is over and the job goes back to its old place. Each count is added to (or, attempts, taken from).
-- :token, :due_at, :waits_for, :attempts, :retries, :interruptions, :stops, :base_waits
UPDATE jobs
SET state = 0, token = NULL, node = NULL, slot = NULL, worker = NULL, started_at = NULL, deadline_at = NULL,
    lease_until = NULL, progress = NULL, cancel_at = NULL, due_at = :due_at, waits_for = :waits_for, attempts = attempts + :attempts,
    retries = retries + :retries, interruptions = interruptions + :interruptions, stops = stops + :stops,
    base_waits = base_waits + :base_waits
WHERE token = :token
  AND state = 1
