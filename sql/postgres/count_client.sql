-- How many jobs of a client are live in a queue, counted to the bound and one more. :queue, :client, :bound
SELECT count(*) AS counted
FROM (SELECT 1 FROM jobs WHERE client = :client AND state < 2 AND queue = :queue LIMIT :bound + 1) AS live
