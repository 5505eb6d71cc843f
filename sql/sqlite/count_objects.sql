-- How many tables and indexes there are: none in a new database.
SELECT count(*)
FROM sqlite_schema
