-- Nodes that were not seen for :kept milliseconds and have no job. :kept
DELETE FROM nodes
WHERE last_seen < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - :kept
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.node = nodes.id AND jobs.token IS NOT NULL)
