-- A row as it was elsewhere, its number included.
INSERT INTO a_table (its_columns)
VALUES (its_values)
