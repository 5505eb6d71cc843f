-- Notes who asked for which job. :rows (a JSON list of objects)
INSERT INTO interests (job_id, client)
SELECT job_id, client
FROM json_populate_recordset(NULL::interests, :rows::json)
ON CONFLICT DO NOTHING
