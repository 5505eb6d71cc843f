-- What becomes of nobody's interest by the clock.
CREATE INDEX jobs_waited ON jobs (wait_until) WHERE state = 0 AND wait_until IS NOT NULL;
-- How long the last successful runs of a format took.
CREATE INDEX runs_took ON runs (format, finished_at, started_at) WHERE outcome = 'ready';
