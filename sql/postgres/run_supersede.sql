-- An older run does not speak for the file any more. :filename, :token
UPDATE runs
SET present = 0
WHERE filename = :filename
  AND present = 1
  AND token <> :token
