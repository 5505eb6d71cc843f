-- Empties a table into which a queue moves.
DELETE FROM a_table
