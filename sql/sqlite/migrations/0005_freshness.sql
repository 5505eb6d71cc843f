-- What the fingerprint of a format said before a run, and when that was last compared with what it says.
ALTER TABLE runs ADD COLUMN fingerprint TEXT;
ALTER TABLE runs ADD COLUMN checked_at INTEGER;
CREATE INDEX runs_checked ON runs (format, coalesce(checked_at, finished_at))
    WHERE present = 1 AND fingerprint IS NOT NULL;
