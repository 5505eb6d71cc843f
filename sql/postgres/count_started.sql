-- How many jobs of a queue take a slot: the started, and the failed whose processes do not die (they keep their token).
-- :queue
SELECT count(*) AS counted
FROM jobs
WHERE token IS NOT NULL
  AND queue = :queue
