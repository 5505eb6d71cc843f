-- A fulfilled job that no worker has: gone, if a file of :published_at still fulfils it. :id, :published_at
DELETE FROM jobs
WHERE id = :id
  AND state <> 1
  AND token IS NULL
  AND greatest(submitted_at, newer_than) <= :published_at
