-- Notes who asked. :job_id, :client
INSERT INTO interests (job_id, client)
VALUES (:job_id, :client)
ON CONFLICT DO NOTHING
