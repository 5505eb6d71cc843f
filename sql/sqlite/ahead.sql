-- How many queued jobs of a queue go before one, counted to 1000. Two ranges of an index: to compare (rank, id) as a whole would
-- be done at each of them. :queue, :rank, :id
SELECT count(*)
FROM (SELECT 1 FROM jobs
      WHERE state = 0 AND queue = :queue AND rank < :rank
      UNION ALL
      SELECT 1 FROM jobs
      WHERE state = 0 AND queue = :queue AND rank = :rank AND id < :id
      LIMIT 1000)
