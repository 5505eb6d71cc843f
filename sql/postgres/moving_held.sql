-- How many runs have not ended: a queue moves without them.
SELECT count(*) AS counted
FROM jobs
WHERE token IS NOT NULL
