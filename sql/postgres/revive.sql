-- A failed job starts afresh, at the end of its queue. A row that still has a token is not touched.
UPDATE jobs
SET state = 0, queue = :queue, client = :client, meta = :meta, pages = :pages, priority = :priority, rank = :rank,
    base_filename = :base_filename, submitted_at = :submitted_at, newer_than = :newer_than, due_at = :due_at,
    waits_for = :waits_for, wait_until = :wait_until, started_at = NULL, deadline_at = NULL, progress = NULL, slot = NULL,
    worker = NULL, node = NULL, finished_at = NULL, reason = NULL, detail = NULL, wanted_at = NULL, attempts = 0,
    retries = 0, interruptions = 0, stops = 0, base_waits = 0
WHERE id = :id
  AND state >= 2
  AND token IS NULL
