-- Queued jobs that nobody waits for any more fail, and each listener is told; one that somebody else works on is left to the
-- next look. :listeners, :now
WITH expired AS (
    UPDATE jobs
    SET state = 3, reason = 'wait_expired', detail = 'nobody waits for it any more', finished_at = :now, due_at = NULL,
        waits_for = NULL
    WHERE id IN (SELECT id FROM jobs WHERE state = 0 AND wait_until <= :now FOR UPDATE SKIP LOCKED)
    RETURNING id, title, lang, font, format, options, filename, client, meta, attempts, reason, detail
),
told AS (
    INSERT INTO deliveries (listener, job_id, title, lang, font, format, options, filename, client, meta, attempts, outcome,
                            reason, detail, happened_at, since, due_at)
    SELECT listeners.value, id, title, lang, font, format, options, filename, client, meta, attempts, 'failed_unknown', reason,
           detail, :now, :now, :now
    FROM expired, unnest(:listeners) AS listeners (value)
)
SELECT count(*) AS counted
FROM expired
