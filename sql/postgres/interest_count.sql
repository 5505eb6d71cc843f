-- How many callers are interested, but for one. :job_id, :client
SELECT count(*) AS counted
FROM interests
WHERE job_id = :job_id
  AND client <> :client
