-- The first schema. Times are integer milliseconds UTC. Migrations only add and never lose a row.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A job is a wish for a file; a job whose file exists is deleted. state: 0 queued, 1 started, 2 failed_timeout,
-- 3 failed_unknown.
CREATE TABLE jobs (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    title         TEXT    NOT NULL CHECK (title <> ''),
    lang          TEXT    NOT NULL,
    font          TEXT    NOT NULL,
    format        TEXT    NOT NULL,
    options       TEXT    NOT NULL CHECK (json_valid(options)),
    filename      TEXT    NOT NULL UNIQUE,
    base_filename TEXT,
    queue         TEXT    NOT NULL,
    client        TEXT,
    meta          TEXT,
    pages         INTEGER,
    priority      INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 1000),
    rank          INTEGER NOT NULL,
    state         INTEGER NOT NULL CHECK (state IN (0, 1, 2, 3)),
    submitted_at  INTEGER NOT NULL,
    newer_than    INTEGER,
    due_at        INTEGER,
    waits_for     TEXT CHECK (waits_for IN ('not_before', 'backing_off')),
    wait_until    INTEGER,
    token         TEXT UNIQUE,
    last_run      TEXT,
    node          TEXT,
    slot          TEXT,
    worker        TEXT,
    started_at    INTEGER,
    deadline_at   INTEGER,
    progress      TEXT,
    finished_at   INTEGER,
    reason        TEXT,
    detail        TEXT,
    cancel_at     INTEGER,
    wanted_at     INTEGER,
    attempts      INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    retries       INTEGER NOT NULL DEFAULT 0 CHECK (retries >= 0),
    interruptions INTEGER NOT NULL DEFAULT 0 CHECK (interruptions >= 0),
    stops         INTEGER NOT NULL DEFAULT 0 CHECK (stops >= 0),
    base_waits    INTEGER NOT NULL DEFAULT 0 CHECK (base_waits >= 0),
    CHECK ((due_at IS NULL) = (waits_for IS NULL)),
    CHECK (due_at IS NULL OR state = 0),
    CHECK (state <> 0 OR (token IS NULL AND slot IS NULL AND started_at IS NULL
        AND finished_at IS NULL AND reason IS NULL AND cancel_at IS NULL)),
    CHECK (state <> 1 OR (token IS NOT NULL AND node IS NOT NULL AND slot IS NOT NULL AND worker IS NOT NULL
        AND started_at IS NOT NULL AND deadline_at IS NOT NULL AND finished_at IS NULL AND reason IS NULL
        AND attempts > 0)),
    CHECK (state < 2 OR (finished_at IS NOT NULL AND reason IS NOT NULL AND detail IS NOT NULL AND cancel_at IS NULL
        AND (token IS NULL OR reason = 'would_not_die'))),
    CHECK (state <> 2 OR reason IN ('timed_out', 'would_not_die')),
    CHECK (state <> 3 OR reason NOT IN ('timed_out', 'would_not_die'))
) STRICT;

-- What starts next in a queue, format by format: a format whose exporter is missing is stepped over, not scanned.
CREATE INDEX jobs_due ON jobs (queue, format, rank, id) WHERE state = 0 AND due_at IS NULL;
-- The place of a job in its queue.
CREATE INDEX jobs_place ON jobs (queue, rank, id) WHERE state = 0;
-- What becomes due by the clock.
CREATE INDEX jobs_later ON jobs (due_at) WHERE state = 0 AND due_at IS NOT NULL;
CREATE INDEX jobs_started ON jobs (queue) WHERE state = 1;
CREATE INDEX jobs_failed ON jobs (finished_at) WHERE state >= 2;
-- A client's last rank at a priority, and how many jobs it has.
CREATE INDEX jobs_client ON jobs (client, priority, rank) WHERE client IS NOT NULL AND state < 2;
CREATE INDEX jobs_base ON jobs (base_filename) WHERE base_filename IS NOT NULL;

-- Who asked: a cancel ends a job only with the last of them.
CREATE TABLE interests (
    job_id INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    client TEXT    NOT NULL,
    PRIMARY KEY (job_id, client)
) STRICT, WITHOUT ROWID;

-- One row an attempt. present: the file that this run published has not been seen to be gone.
CREATE TABLE runs (
    token        TEXT    PRIMARY KEY,
    job_id       INTEGER NOT NULL,
    title        TEXT    NOT NULL,
    lang         TEXT    NOT NULL,
    font         TEXT    NOT NULL,
    format       TEXT    NOT NULL,
    options      TEXT    NOT NULL,
    filename     TEXT    NOT NULL,
    queue        TEXT    NOT NULL,
    client       TEXT,
    meta         TEXT,
    node         TEXT    NOT NULL,
    outcome      TEXT    NOT NULL
        CHECK (outcome IN ('ready', 'failed_timeout', 'failed_unknown', 'retried', 'interrupted', 'stopped')),
    reason       TEXT,
    detail       TEXT,
    submitted_at INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    finished_at  INTEGER NOT NULL,
    published_at INTEGER,
    bytes        INTEGER,
    exit_code    INTEGER,
    signal       INTEGER,
    peak_memory  INTEGER,
    cpu_millis   INTEGER,
    present      INTEGER NOT NULL CHECK (present IN (0, 1)),
    CHECK (present = 0 OR published_at IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- At most one run speaks for a file.
CREATE UNIQUE INDEX runs_present ON runs (filename) WHERE present = 1;
CREATE INDEX runs_due ON runs (published_at) WHERE present = 1;
CREATE INDEX runs_file ON runs (filename, finished_at);
CREATE INDEX runs_finished ON runs (finished_at);

-- A pause outlives every process and stands here, never in the rows of jobs.
CREATE TABLE queues (
    name      TEXT PRIMARY KEY,
    paused_at INTEGER,
    message   TEXT
) STRICT, WITHOUT ROWID;
