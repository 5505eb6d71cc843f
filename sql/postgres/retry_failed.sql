-- Every failed job starts afresh at its old place, and is waited for without end. A row that still has a token is not
-- touched. :now
UPDATE jobs
SET state = 0, submitted_at = :now, wait_until = NULL, started_at = NULL, deadline_at = NULL, progress = NULL, slot = NULL,
    worker = NULL, node = NULL, finished_at = NULL, reason = NULL, detail = NULL, wanted_at = NULL, attempts = 0,
    retries = 0, interruptions = 0, stops = 0, base_waits = 0
WHERE state >= 2
  AND token IS NULL
