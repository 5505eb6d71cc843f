-- What starts next, format by format. Only the two together find it: given (queue, format, rank, id) the planner may take
-- jobs_place and walk through a whole queue for a format that nobody waits for.
CREATE INDEX jobs_heads ON jobs ((queue || '/' || format), rank, id) WHERE state = 0 AND due_at IS NULL;
DROP INDEX jobs_due;
