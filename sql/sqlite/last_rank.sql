-- The last rank that a client has at a priority. :client, :priority
SELECT max(rank)
FROM jobs
WHERE client = :client
  AND priority = :priority
  AND state < 2
