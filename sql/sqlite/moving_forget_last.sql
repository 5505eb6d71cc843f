-- Forgets which number was given last in a table. :table
DELETE FROM sqlite_sequence
WHERE name = :table
