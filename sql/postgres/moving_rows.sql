-- Every row of a table, whole: what a later schema adds moves too. Read page by page.
DECLARE leaving NO SCROLL CURSOR FOR
SELECT row_to_json(a_table)::text AS whole
FROM a_table
