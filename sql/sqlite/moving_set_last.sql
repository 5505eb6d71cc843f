-- The next number given in a table is the one after :last. :table, :last
INSERT INTO sqlite_sequence (name, seq)
VALUES (:table, :last)
