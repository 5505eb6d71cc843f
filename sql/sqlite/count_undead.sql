-- How many failed jobs have processes left.
SELECT count(*)
FROM jobs
WHERE state >= 2
  AND token IS NOT NULL
