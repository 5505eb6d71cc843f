-- The file was handed out then. :filename, :at
UPDATE runs
SET accessed_at = max(coalesce(accessed_at, :at), :at)
WHERE filename = :filename
  AND present = 1
