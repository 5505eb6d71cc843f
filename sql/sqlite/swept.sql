-- The file is gone. :filename
UPDATE runs
SET present = 0
WHERE filename = :filename
  AND present = 1
