-- What is to be told to others of jobs that ended; a row goes when it was told. due_at NULL: given up.
CREATE TABLE deliveries (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    listener    TEXT    NOT NULL CHECK (listener <> ''),
    job_id      INTEGER NOT NULL,
    title       TEXT    NOT NULL,
    lang        TEXT    NOT NULL,
    font        TEXT    NOT NULL,
    format      TEXT    NOT NULL,
    options     TEXT    NOT NULL CHECK (json_valid(options)),
    filename    TEXT    NOT NULL,
    client      TEXT,
    meta        TEXT,
    attempts    INTEGER NOT NULL,
    outcome     TEXT    NOT NULL CHECK (outcome IN ('ready', 'failed_timeout', 'failed_unknown')),
    reason      TEXT,
    detail      TEXT,
    happened_at INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    due_at      INTEGER,
    tries       INTEGER NOT NULL DEFAULT 0 CHECK (tries >= 0),
    error       TEXT
) STRICT;
CREATE INDEX deliveries_due ON deliveries (listener, due_at, id) WHERE due_at IS NOT NULL;
