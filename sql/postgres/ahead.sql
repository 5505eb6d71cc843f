-- How many queued jobs of a queue go before one, counted to 1000. :queue, :rank, :id
SELECT count(*) AS counted
FROM (SELECT 1 FROM jobs
      WHERE state = 0 AND queue = :queue AND (rank, id) < (:rank, :id)
      ORDER BY rank, id
      LIMIT 1000) AS before
