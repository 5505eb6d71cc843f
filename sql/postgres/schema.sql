-- All tables lie in a schema of their own: the database may hold other things.
CREATE SCHEMA export_queue
