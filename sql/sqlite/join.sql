-- One more caller for a live job: its priority may rise (a lower number, a lower rank), never fall; a refresh makes a
-- file published before now count for nothing, and so does asking for what was just cancelled. :id, :priority, :rank,
-- :newer_than, :now
UPDATE jobs
SET priority   = min(priority, :priority),
    rank       = CASE WHEN :priority < priority THEN min(rank, :rank) ELSE rank END,
    newer_than = CASE WHEN cancel_at IS NOT NULL THEN :now ELSE coalesce(:newer_than, newer_than) END
WHERE id = :id
