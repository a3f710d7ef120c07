-- The first schema. Append-only: a later change is a file of its own.
--
-- Narrow tables: which of `due`, `lease` and `ended` names a job IS its state (as the membership in a set is in Redis), so
-- that reserving and settling move a few dozen bytes and never rewrite a payload. Every name starts with punctual_, since
-- the file may be the application's own. Times are Unix milliseconds.

-- Format version and the like.
CREATE TABLE punctual_meta (k TEXT PRIMARY KEY, v) WITHOUT ROWID;

-- One row: the last fence given; the time of the last reserve, take, extend or settle; until when nothing is taken back
-- (S14); how far from its slot a record was ever put (slot.rs).
CREATE TABLE punctual_state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    fence INTEGER NOT NULL, seen INTEGER NOT NULL, grace INTEGER NOT NULL, reach INTEGER NOT NULL
);
INSERT INTO punctual_state VALUES (1, 0, 0, 0, 0);

-- A queue: its settings (JSON; NULL: all defaults) and its kept counters.
CREATE TABLE punctual_queue (
    qid INTEGER PRIMARY KEY, name TEXT NOT NULL, settings TEXT,
    waiting INTEGER NOT NULL DEFAULT 0, retrying INTEGER NOT NULL DEFAULT 0, running INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0, done_bytes INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0, dead_bytes INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0, cancelled_bytes INTEGER NOT NULL DEFAULT 0,
    remembered INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX punctual_queue_name ON punctual_queue (name);

-- What was asked for: written once, changed by callers only (run_at by retries too: its width stays). `slot` follows from
-- the id (slot.rs), so that no index on the id is needed. `opts` is JSON of all that is rarely chosen, NULL where nothing is.
CREATE TABLE punctual_job (
    slot INTEGER PRIMARY KEY, id BLOB NOT NULL, q INTEGER, kind TEXT, pri INTEGER, run_at INTEGER, created_at INTEGER,
    version INTEGER, expires_at INTEGER, opts TEXT, payload BLOB
);

-- What earlier runs left behind; only for jobs that have something to tell. `started`: was reserved once.
CREATE TABLE punctual_past (
    id BLOB PRIMARY KEY, attempt INTEGER, crashes INTEGER, snoozes INTEGER, started INTEGER, reason TEXT, failures TEXT
) WITHOUT ROWID;

-- Waiting jobs: the timeline.
CREATE TABLE punctual_due (
    q INTEGER, pri INTEGER, run_at INTEGER, id BLOB, PRIMARY KEY (q, pri, run_at, id)
) WITHOUT ROWID;

-- Waiting jobs that may expire.
CREATE TABLE punctual_expiry (
    q INTEGER, expires_at INTEGER, id BLOB, PRIMARY KEY (q, expires_at, id)
) WITHOUT ROWID;

-- Running jobs. `flags`: 1 a cancel was asked for, 2 the job has a unique key, 4 it has a past.
CREATE TABLE punctual_lease (
    id BLOB PRIMARY KEY, fence INTEGER, q INTEGER, until INTEGER, lasts INTEGER, started_at INTEGER,
    bytes INTEGER, flags INTEGER, worker TEXT
) WITHOUT ROWID;
CREATE INDEX punctual_lease_until ON punctual_lease (q, until);

-- Ended jobs as far as they are kept. `st`: 2 done, 3 dead, 4 cancelled.
CREATE TABLE punctual_ended (
    id BLOB PRIMARY KEY, q INTEGER, st INTEGER, at INTEGER, bytes INTEGER, reason TEXT
) WITHOUT ROWID;
CREATE INDEX punctual_ended_at ON punctual_ended (q, st, at);

-- Unique keys that are held. `key`: group, concurrency key and key, lengths first. `scope`: 0 until done, 1 until start,
-- 2 a window, which ends at `until`.
CREATE TABLE punctual_unique (
    q INTEGER, key BLOB, id BLOB, scope INTEGER, until INTEGER, PRIMARY KEY (q, key)
) WITHOUT ROWID;
CREATE INDEX punctual_unique_until ON punctual_unique (until) WHERE until IS NOT NULL;

-- Derived ids whose record is gone; `at`: when the job ended.
CREATE TABLE punctual_memory (q INTEGER, id BLOB, at INTEGER, PRIMARY KEY (q, id)) WITHOUT ROWID;
CREATE INDEX punctual_memory_at ON punctual_memory (q, at);

-- The last call of each instance (S3). `verb`: 0 enqueue, 1 reserve.
CREATE TABLE punctual_call (
    instance INTEGER, verb INTEGER, number INTEGER, at INTEGER, answer BLOB, PRIMARY KEY (instance, verb)
) WITHOUT ROWID;
CREATE INDEX punctual_call_at ON punctual_call (at);
