-- Files that were handed out since then. :since
SELECT filename, accessed_at
FROM runs
WHERE present = 1
  AND accessed_at >= :since
