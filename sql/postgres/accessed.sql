-- The file was handed out then, unless it was published or handed out since :before. A row that somebody else holds is left
-- alone: nobody waits for that. :filename, :at, :before
UPDATE runs
SET accessed_at = greatest(accessed_at, :at)
WHERE token IN (SELECT token
                FROM runs
                WHERE filename = :filename
                  AND present = 1
                  AND coalesce(accessed_at, published_at) <= :before
                FOR UPDATE SKIP LOCKED)
