-- Nothing of this queue starts any more; a pause that is in force keeps its date, and its message unless there is a new
-- one. :queue, :message, :now
INSERT INTO queues (name, paused_at, message)
VALUES (:queue, :now, :message)
ON CONFLICT (name) DO UPDATE
SET paused_at = coalesce(queues.paused_at, excluded.paused_at),
    message   = coalesce(excluded.message, queues.message)
