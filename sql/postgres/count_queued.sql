-- How many jobs wait in a queue, counted to the bound and one more, in their order, so that they are counted by jobs_place.
-- :queue, :bound
SELECT count(*) AS counted
FROM (SELECT 1 FROM jobs WHERE state = 0 AND queue = :queue ORDER BY rank, id LIMIT :bound + 1) AS waiting
