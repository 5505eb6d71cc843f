-- Files published before :before (or after :horizon, by a clock that was wrong) that nobody has seen gone.
-- :before, :horizon, :skip, :limit
SELECT filename
FROM runs
WHERE present = 1
  AND (published_at < :before OR published_at > :horizon)
ORDER BY published_at
LIMIT :limit OFFSET :skip
