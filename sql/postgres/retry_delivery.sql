-- It is tried afresh, now. :id, :now
UPDATE deliveries
SET due_at = :now, since = :now, tries = 0
WHERE id = :id
