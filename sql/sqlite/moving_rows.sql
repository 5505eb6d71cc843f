-- Every row of a table, whole: what a later schema adds moves too.
SELECT *
FROM a_table
