-- These files are gone; their rows are taken in one order, so that two sweeps do not wait for each other. :filenames
UPDATE runs
SET present = 0
WHERE token IN (SELECT token
                FROM runs
                WHERE present = 1
                  AND filename = ANY (:filenames)
                ORDER BY filename
                FOR UPDATE)
