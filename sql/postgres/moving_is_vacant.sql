-- 1 where no job and no history would be lost.
SELECT (NOT EXISTS (SELECT 1 FROM jobs) AND NOT EXISTS (SELECT 1 FROM runs) AND NOT EXISTS (SELECT 1 FROM deliveries))::int
       AS counted
