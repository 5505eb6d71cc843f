-- The last rank that a client has at a priority. :client, :priority
SELECT max(rank) AS last
FROM jobs
WHERE client = :client
  AND priority = :priority
  AND state < 2
