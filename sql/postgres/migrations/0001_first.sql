-- The first schema. Times are integer milliseconds UTC; texts are compared byte by byte. Migrations only add and never lose
-- a row.
CREATE TABLE meta (
    name  TEXT COLLATE "C" PRIMARY KEY,
    value TEXT NOT NULL
);

-- A job is a wish for a file; a job whose file exists is deleted. state: 0 queued, 1 started, 2 failed_timeout,
-- 3 failed_unknown. lease_until: others may take the run over after it. Rows are short-lived and their pages are kept
-- half empty, so that a change finds room beside its row and dead rows go before they slow the claims.
CREATE TABLE jobs (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    title         TEXT     COLLATE "C" NOT NULL CHECK (title <> ''),
    lang          TEXT     COLLATE "C" NOT NULL,
    font          TEXT     COLLATE "C" NOT NULL,
    format        TEXT     COLLATE "C" NOT NULL,
    options       TEXT     COLLATE "C" NOT NULL CHECK (options::jsonb IS NOT NULL),
    filename      TEXT     COLLATE "C" NOT NULL UNIQUE,
    base_filename TEXT     COLLATE "C",
    queue         TEXT     COLLATE "C" NOT NULL,
    client        TEXT     COLLATE "C",
    meta          TEXT,
    pages         BIGINT,
    priority      BIGINT   NOT NULL CHECK (priority BETWEEN 0 AND 1000),
    rank          BIGINT   NOT NULL,
    state         SMALLINT NOT NULL CHECK (state IN (0, 1, 2, 3)),
    submitted_at  BIGINT   NOT NULL,
    newer_than    BIGINT,
    due_at        BIGINT,
    waits_for     TEXT     COLLATE "C" CHECK (waits_for IN ('not_before', 'backing_off')),
    wait_until    BIGINT,
    token         TEXT     COLLATE "C" UNIQUE,
    last_run      TEXT     COLLATE "C",
    node          TEXT     COLLATE "C",
    slot          TEXT     COLLATE "C",
    worker        TEXT     COLLATE "C",
    lease_until   BIGINT,
    started_at    BIGINT,
    deadline_at   BIGINT,
    progress      TEXT,
    finished_at   BIGINT,
    reason        TEXT     COLLATE "C",
    detail        TEXT,
    cancel_at     BIGINT,
    wanted_at     BIGINT,
    attempts      BIGINT   NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    retries       BIGINT   NOT NULL DEFAULT 0 CHECK (retries >= 0),
    interruptions BIGINT   NOT NULL DEFAULT 0 CHECK (interruptions >= 0),
    stops         BIGINT   NOT NULL DEFAULT 0 CHECK (stops >= 0),
    base_waits    BIGINT   NOT NULL DEFAULT 0 CHECK (base_waits >= 0),
    CHECK ((due_at IS NULL) = (waits_for IS NULL)),
    CHECK (due_at IS NULL OR state = 0),
    CHECK ((token IS NULL) = (lease_until IS NULL)),
    CHECK (state <> 0 OR (token IS NULL AND slot IS NULL AND started_at IS NULL
        AND finished_at IS NULL AND reason IS NULL AND cancel_at IS NULL)),
    CHECK (state <> 1 OR (token IS NOT NULL AND node IS NOT NULL AND slot IS NOT NULL AND worker IS NOT NULL
        AND started_at IS NOT NULL AND deadline_at IS NOT NULL AND finished_at IS NULL AND reason IS NULL
        AND attempts > 0)),
    CHECK (state < 2 OR (finished_at IS NOT NULL AND reason IS NOT NULL AND detail IS NOT NULL AND cancel_at IS NULL
        AND (token IS NULL OR reason = 'would_not_die'))),
    CHECK (state <> 2 OR reason IN ('timed_out', 'would_not_die')),
    CHECK (state <> 3 OR reason NOT IN ('timed_out', 'would_not_die'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.02);

-- What starts next in a queue, format by format: a format whose exporter is missing is stepped over, not scanned.
CREATE INDEX jobs_due ON jobs (queue, format, rank, id) WHERE state = 0 AND due_at IS NULL;
-- The place of a job in its queue.
CREATE INDEX jobs_place ON jobs (queue, rank, id) WHERE state = 0;
-- What becomes due by the clock.
CREATE INDEX jobs_later ON jobs (due_at) WHERE state = 0 AND due_at IS NOT NULL;
-- What becomes of nobody's interest by the clock.
CREATE INDEX jobs_waited ON jobs (wait_until) WHERE state = 0 AND wait_until IS NOT NULL;
-- Runs: how many a queue has, whose they are, and which have lost their node.
CREATE INDEX jobs_running ON jobs (queue, node, lease_until, id) WHERE token IS NOT NULL;
CREATE INDEX jobs_failed ON jobs (finished_at, id) WHERE state >= 2;
-- A client's last rank at a priority, and how many jobs it has.
CREATE INDEX jobs_client ON jobs (client, priority, rank) WHERE client IS NOT NULL AND state < 2;
CREATE INDEX jobs_base ON jobs (base_filename) WHERE base_filename IS NOT NULL;
-- Whose work directories and logs are not to be swept.
CREATE INDEX jobs_last_run ON jobs (last_run) WHERE last_run IS NOT NULL;

-- Who asked: a cancel ends a job only with the last of them.
CREATE TABLE interests (
    job_id BIGINT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    client TEXT   COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, client)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);

-- One row an attempt. present: the file that this run published has not been seen to be gone.
CREATE TABLE runs (
    token        TEXT     COLLATE "C" PRIMARY KEY,
    job_id       BIGINT   NOT NULL,
    title        TEXT     COLLATE "C" NOT NULL,
    lang         TEXT     COLLATE "C" NOT NULL,
    font         TEXT     COLLATE "C" NOT NULL,
    format       TEXT     COLLATE "C" NOT NULL,
    options      TEXT     COLLATE "C" NOT NULL,
    filename     TEXT     COLLATE "C" NOT NULL,
    queue        TEXT     COLLATE "C" NOT NULL,
    client       TEXT     COLLATE "C",
    meta         TEXT,
    node         TEXT     COLLATE "C" NOT NULL,
    outcome      TEXT     COLLATE "C" NOT NULL
        CHECK (outcome IN ('ready', 'failed_timeout', 'failed_unknown', 'retried', 'interrupted', 'stopped')),
    reason       TEXT     COLLATE "C",
    detail       TEXT,
    submitted_at BIGINT   NOT NULL,
    started_at   BIGINT   NOT NULL,
    finished_at  BIGINT   NOT NULL,
    published_at BIGINT,
    bytes        BIGINT,
    exit_code    BIGINT,
    signal       BIGINT,
    peak_memory  BIGINT,
    cpu_millis   BIGINT,
    present      SMALLINT NOT NULL CHECK (present IN (0, 1)),
    accessed_at  BIGINT,
    fingerprint  TEXT,
    checked_at   BIGINT,
    CHECK (present = 0 OR published_at IS NOT NULL)
);

-- At most one run speaks for a file.
CREATE UNIQUE INDEX runs_present ON runs (filename) WHERE present = 1;
-- When a file was last handed out: what is used may stay.
CREATE INDEX runs_unused ON runs ((coalesce(accessed_at, published_at))) WHERE present = 1;
CREATE INDEX runs_accessed ON runs (accessed_at) WHERE present = 1 AND accessed_at IS NOT NULL;
-- Whose fingerprint was not compared for the longest.
CREATE INDEX runs_checked ON runs (format, (coalesce(checked_at, finished_at)))
    WHERE present = 1 AND fingerprint IS NOT NULL;
CREATE INDEX runs_file ON runs (filename, finished_at);
CREATE INDEX runs_finished ON runs (finished_at, token);
-- How long the last successful runs of a format took.
CREATE INDEX runs_took ON runs (format, finished_at, started_at) WHERE outcome = 'ready';

-- A pause outlives every process and stands here, never in the rows of jobs.
CREATE TABLE queues (
    name      TEXT COLLATE "C" PRIMARY KEY,
    paused_at BIGINT,
    message   TEXT
);

-- Machines that have worked on this queue, each since its boot.
CREATE TABLE nodes (
    id         TEXT   COLLATE "C" PRIMARY KEY,
    name       TEXT   NOT NULL,
    version    TEXT   NOT NULL,
    slots      BIGINT NOT NULL,
    first_seen BIGINT NOT NULL,
    last_seen  BIGINT NOT NULL
);

-- What is to be told to others of jobs that ended; a row goes when it was told. due_at NULL: given up.
CREATE TABLE deliveries (
    id          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    listener    TEXT   COLLATE "C" NOT NULL CHECK (listener <> ''),
    job_id      BIGINT NOT NULL,
    title       TEXT   NOT NULL,
    lang        TEXT   NOT NULL,
    font        TEXT   NOT NULL,
    format      TEXT   NOT NULL,
    options     TEXT   NOT NULL,
    filename    TEXT   NOT NULL,
    client      TEXT,
    meta        TEXT,
    attempts    BIGINT NOT NULL,
    outcome     TEXT   COLLATE "C" NOT NULL CHECK (outcome IN ('ready', 'failed_timeout', 'failed_unknown')),
    reason      TEXT,
    detail      TEXT,
    happened_at BIGINT NOT NULL,
    since       BIGINT NOT NULL,
    due_at      BIGINT,
    tries       BIGINT NOT NULL DEFAULT 0 CHECK (tries >= 0),
    error       TEXT
);
CREATE INDEX deliveries_due ON deliveries (listener, due_at, id) WHERE due_at IS NOT NULL;
