-- One more caller for a live job: its priority may rise (a lower number, a lower rank), never fall, and the same with the
-- time before which it was not wanted; it is waited for as long as the most patient caller does (NULL: for ever). A refresh
-- makes a file published before now count for nothing, and so does asking for what was just cancelled. (least and greatest
-- step over NULL here, where SQLite's min and max give NULL.) :id, :priority, :rank, :newer_than, :due_at, :wait_until, :now
UPDATE jobs
SET priority   = least(priority, :priority),
    rank       = CASE WHEN :priority < priority THEN least(rank, :rank) ELSE rank END,
    newer_than = CASE WHEN cancel_at IS NOT NULL THEN :now ELSE coalesce(:newer_than, newer_than) END,
    due_at     = CASE WHEN waits_for = 'not_before' AND :due_at IS NULL THEN NULL
                      WHEN waits_for = 'not_before' THEN least(due_at, :due_at)
                      ELSE due_at END,
    waits_for  = CASE WHEN waits_for = 'not_before' AND :due_at IS NULL THEN NULL ELSE waits_for END,
    wait_until = CASE WHEN wait_until IS NULL OR :wait_until IS NULL THEN NULL ELSE greatest(wait_until, :wait_until) END
WHERE id = :id
