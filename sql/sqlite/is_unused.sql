-- 1 if a file is there that was neither published nor handed out since then. :filename, :before
SELECT count(*)
FROM runs
WHERE filename = :filename
  AND present = 1
  AND coalesce(accessed_at, published_at) <= :before
