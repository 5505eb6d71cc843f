-- The last number that was given in a table; none is given twice. :table
SELECT coalesce(max(seq), 0) AS counted
FROM sqlite_sequence
WHERE name = :table
