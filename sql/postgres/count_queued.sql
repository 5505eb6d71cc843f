-- How many jobs wait in a queue, counted to the bound and one more. :queue, :bound
SELECT count(*) AS counted
FROM (SELECT 1 FROM jobs WHERE state = 0 AND queue = :queue LIMIT :bound + 1) AS waiting
