-- It could not be told, and is tried again then (NULL: no more). :id, :error, :due_at
UPDATE deliveries
SET tries = tries + 1, error = :error, due_at = :due_at
WHERE id = :id
