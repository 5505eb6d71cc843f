-- The file is younger than its run says (a later run was lost): so is the run. :filename, :published_at
UPDATE runs
SET published_at = :published_at
WHERE filename = :filename
  AND present = 1
