-- Files published and handed out before :before (or after :horizon, by a clock that was wrong) that nobody has seen gone,
-- with their last use; each side by its index, the many between the two are not looked at. :before, :horizon, :skip, :limit
SELECT filename, coalesce(accessed_at, published_at) AS used_at
FROM runs
WHERE present = 1
  AND coalesce(accessed_at, published_at) < :before
UNION ALL
SELECT filename, coalesce(accessed_at, published_at) AS used_at
FROM runs
WHERE present = 1
  AND coalesce(accessed_at, published_at) > :horizon
ORDER BY used_at
LIMIT :limit OFFSET :skip
