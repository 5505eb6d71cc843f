-- Files published and handed out before :before (or after :horizon, by a clock that was wrong) that nobody has seen gone.
-- :before, :horizon, :skip, :limit
SELECT filename
FROM runs
WHERE present = 1
  AND (coalesce(accessed_at, published_at) < :before OR coalesce(accessed_at, published_at) > :horizon)
ORDER BY coalesce(accessed_at, published_at)
LIMIT :limit OFFSET :skip
