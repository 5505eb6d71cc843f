-- What the caller whose run made the file wants to have back; at most one run speaks for a file. :filename
SELECT meta
FROM runs
WHERE filename = :filename
  AND present = 1
