-- What the program looks for: which schema this is, the oldest program that may write to it, and the queue's own random id.
INSERT INTO meta (name, value)
VALUES ('schema', ':schema'),
       ('oldest_writer', ':oldest_writer'),
       ('queue_id', replace(gen_random_uuid()::text, '-', ''));

-- Where the program's user is not the one who runs this:
-- GRANT USAGE ON SCHEMA export_queue TO queue;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA export_queue TO queue;
