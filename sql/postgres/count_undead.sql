-- How many failed jobs have processes left.
SELECT count(*) AS counted
FROM jobs
WHERE state >= 2
  AND token IS NOT NULL
