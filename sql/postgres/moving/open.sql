-- A queue may be written to again.
DROP FUNCTION refuse_while_moving() CASCADE;
