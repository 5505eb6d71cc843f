-- The table was read.
CLOSE leaving
