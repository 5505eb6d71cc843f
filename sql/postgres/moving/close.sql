-- Nobody writes to a queue that moves to another database, whoever has it open: each write is refused as a whole.
CREATE FUNCTION refuse_while_moving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the queue moves' USING ERRCODE = 'EQ001';
END
$$;
CREATE TRIGGER moving BEFORE INSERT OR UPDATE OR DELETE ON jobs EXECUTE FUNCTION refuse_while_moving();
CREATE TRIGGER moving BEFORE INSERT OR UPDATE OR DELETE ON interests EXECUTE FUNCTION refuse_while_moving();
CREATE TRIGGER moving BEFORE INSERT OR UPDATE OR DELETE ON runs EXECUTE FUNCTION refuse_while_moving();
CREATE TRIGGER moving BEFORE INSERT OR UPDATE OR DELETE ON queues EXECUTE FUNCTION refuse_while_moving();
CREATE TRIGGER moving BEFORE INSERT OR UPDATE OR DELETE ON deliveries EXECUTE FUNCTION refuse_while_moving();
