-- It was taken and not told: it is due to everybody again. :id, :now
UPDATE deliveries
SET due_at = :now
WHERE id = :id
  AND due_at IS NOT NULL
