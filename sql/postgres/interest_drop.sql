-- One caller is not interested any more. :job_id, :client
DELETE FROM interests
WHERE job_id = :job_id
  AND client = :client
