-- Runs that are kept long enough, or beyond the number kept in the order of `history`; never one whose file is there.
-- At most :limit at a time. :before, :max, :limit
DELETE FROM runs
WHERE token IN (SELECT token FROM runs WHERE finished_at < :before AND present = 0 ORDER BY finished_at LIMIT :limit)
   OR token IN (SELECT token FROM (SELECT token, finished_at, present FROM runs
                                   ORDER BY finished_at DESC, token OFFSET :max) AS beyond
                WHERE present = 0 LIMIT :limit)
