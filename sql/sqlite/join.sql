-- One more caller for a live job: its priority may rise (a lower number, a lower rank), never fall; a refresh makes a
-- file published before now count for nothing. :id, :priority, :rank, :newer_than
UPDATE jobs
SET priority   = min(priority, :priority),
    rank       = CASE WHEN :priority < priority THEN min(rank, :rank) ELSE rank END,
    newer_than = coalesce(:newer_than, newer_than)
WHERE id = :id
