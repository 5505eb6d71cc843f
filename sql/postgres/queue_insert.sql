-- A row for a queue that never was paused, to be locked. :queue
INSERT INTO queues (name)
VALUES (:queue)
ON CONFLICT DO NOTHING
