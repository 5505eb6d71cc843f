-- Queued jobs that nobody waits for any more. :now
UPDATE jobs
SET state = 3, reason = 'wait_expired', detail = 'nobody waits for it any more', finished_at = :now, due_at = NULL,
    waits_for = NULL
WHERE state = 0
  AND wait_until <= :now
