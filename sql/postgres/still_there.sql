-- The file is younger than its run says (a later run was lost), or was aged: so is the run. :filename, :published_at
UPDATE runs
SET published_at = :published_at, accessed_at = NULL
WHERE filename = :filename
  AND present = 1
