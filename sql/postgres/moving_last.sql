-- The last number that was given in a table; none is given twice.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS counted
FROM a_table_id_seq
