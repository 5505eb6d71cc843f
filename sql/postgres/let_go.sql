-- The processes of a failed run are gone at last: the row is free, and queued again if somebody wants it. :token
UPDATE jobs
SET token = NULL,
    state = CASE WHEN wanted_at IS NULL THEN state ELSE 0 END,
    submitted_at = coalesce(wanted_at, submitted_at),
    attempts = CASE WHEN wanted_at IS NULL THEN attempts ELSE 0 END,
    retries = CASE WHEN wanted_at IS NULL THEN retries ELSE 0 END,
    interruptions = CASE WHEN wanted_at IS NULL THEN interruptions ELSE 0 END,
    stops = CASE WHEN wanted_at IS NULL THEN stops ELSE 0 END,
    base_waits = CASE WHEN wanted_at IS NULL THEN base_waits ELSE 0 END,
    reason = CASE WHEN wanted_at IS NULL THEN reason END,
    detail = CASE WHEN wanted_at IS NULL THEN detail END,
    finished_at = CASE WHEN wanted_at IS NULL THEN finished_at END,
    started_at = NULL, deadline_at = NULL, node = NULL, slot = NULL, worker = NULL, lease_until = NULL,
    wanted_at = NULL
WHERE token = :token
  AND state >= 2
