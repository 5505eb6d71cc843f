-- One fact about the database itself. :name
SELECT value
FROM meta
WHERE name = :name
