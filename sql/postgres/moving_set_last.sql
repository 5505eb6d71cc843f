-- The next number given in a table is the one after :last.
SELECT setval('a_table_id_seq', greatest(:last, 1), :last > 0)
