-- What was to be told of jobs that ended before then, and what was given up beyond the number kept, the latest first.
-- :before, :max
DELETE FROM deliveries
WHERE happened_at < :before
   OR id IN (SELECT id FROM deliveries WHERE due_at IS NULL ORDER BY id DESC OFFSET :max)
