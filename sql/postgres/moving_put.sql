-- Rows as they were elsewhere, their numbers included. :rows (a JSON list of objects)
INSERT INTO a_table OVERRIDING SYSTEM VALUE
SELECT *
FROM json_populate_recordset(NULL::a_table, :rows::json)
