-- How long the last successful runs of a format took, in milliseconds, by an index that holds them. :format, :limit
SELECT finished_at - started_at AS took
FROM runs
WHERE format = :format
  AND outcome = 'ready'
ORDER BY finished_at DESC
LIMIT :limit
