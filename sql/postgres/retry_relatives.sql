-- Whoever wants a file tried again wants what it is made from tried again, and gives what failed for its sake another
-- chance: all of them start afresh at their old places. A row that still has a token is not touched. :filename, :now
WITH RECURSIVE bases (filename) AS (
    SELECT base_filename FROM jobs WHERE filename = :filename AND base_filename IS NOT NULL
    UNION
    SELECT jobs.base_filename FROM bases JOIN jobs ON jobs.filename = bases.filename WHERE jobs.base_filename IS NOT NULL
),
heirs (filename) AS (
    SELECT jobs.filename FROM jobs WHERE base_filename = :filename AND reason = 'base_failed'
    UNION
    SELECT jobs.filename FROM heirs JOIN jobs ON jobs.base_filename = heirs.filename WHERE jobs.reason = 'base_failed'
)
UPDATE jobs
SET state = 0, submitted_at = :now, wait_until = NULL, started_at = NULL, deadline_at = NULL, progress = NULL, slot = NULL,
    worker = NULL, node = NULL, finished_at = NULL, reason = NULL, detail = NULL, wanted_at = NULL, attempts = 0,
    retries = 0, interruptions = 0, stops = 0, base_waits = 0
WHERE filename IN (SELECT filename FROM bases UNION SELECT filename FROM heirs)
  AND state >= 2
  AND token IS NULL
