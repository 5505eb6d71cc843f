-- When a file was last handed out, as front ends note it: what is used may stay.
ALTER TABLE runs ADD COLUMN accessed_at INTEGER;
CREATE INDEX runs_accessed ON runs (accessed_at) WHERE present = 1 AND accessed_at IS NOT NULL;
CREATE INDEX runs_unused ON runs (coalesce(accessed_at, published_at)) WHERE present = 1;
DROP INDEX runs_due;
