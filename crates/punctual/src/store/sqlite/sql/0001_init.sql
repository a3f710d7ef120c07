-- The first schema. Append-only: each later change is a file of its own.
--
-- Tables are narrow. Which of `due`, `lease` and `ended` contains a job IS its state. So reserving and settling move
-- a few dozen bytes and never rewrite a payload. All names start with punctual_, because the file can be the
-- application's own. Times are Unix milliseconds.

-- Single values: 'schema' (the format version), 'identity', 'silences' (S14), 'doubt_since' and 'doubt_from' (S17).
CREATE TABLE punctual_meta (k TEXT PRIMARY KEY, v) WITHOUT ROWID;

-- One row: the last fence; `seen`: the time of the last mark (S9); `grace`: what of punctual_meta is in force: 1 the silences, 2 the doubt
-- (earlier versions kept the end of a pause here); `reach`: how far after its slot a record was ever stored (row_number.rs).
CREATE TABLE punctual_state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    fence INTEGER NOT NULL, seen INTEGER NOT NULL, grace INTEGER NOT NULL, reach INTEGER NOT NULL
);
INSERT INTO punctual_state VALUES (1, 0, 0, 0, 0);

-- Queues: settings (JSON; NULL: all defaults) and counters.
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

-- Records. Written once, then changed by callers only (run_at also by retries, without changing its width). `slot`
-- follows from the id (row_number.rs), so no index on the id is needed. `opts` is JSON of rarely chosen options, NULL
-- if there are none.
CREATE TABLE punctual_job (
    slot INTEGER PRIMARY KEY, id BLOB NOT NULL, q INTEGER, kind TEXT, pri INTEGER, run_at INTEGER, created_at INTEGER,
    version INTEGER, expires_at INTEGER, opts TEXT, payload BLOB
);

-- The history of a job's runs, only for jobs that have one. `started`: it was reserved once.
CREATE TABLE punctual_past (
    id BLOB PRIMARY KEY, attempt INTEGER, crashes INTEGER, snoozes INTEGER, started INTEGER, reason TEXT, failures TEXT
) WITHOUT ROWID;

-- Waiting jobs: the timeline.
CREATE TABLE punctual_due (
    q INTEGER, pri INTEGER, run_at INTEGER, id BLOB, PRIMARY KEY (q, pri, run_at, id)
) WITHOUT ROWID;

-- Waiting jobs that can expire.
CREATE TABLE punctual_expiry (
    q INTEGER, expires_at INTEGER, id BLOB, PRIMARY KEY (q, expires_at, id)
) WITHOUT ROWID;

-- Running jobs. `flags`: 1 cancel requested, 2 has a unique key, 4 has a history.
CREATE TABLE punctual_lease (
    id BLOB PRIMARY KEY, fence INTEGER, q INTEGER, until INTEGER, lasts INTEGER, started_at INTEGER,
    bytes INTEGER, flags INTEGER, worker TEXT
) WITHOUT ROWID;
CREATE INDEX punctual_lease_until ON punctual_lease (q, until);

-- Ended jobs that are kept. `st`: 2 done, 3 dead, 4 cancelled.
CREATE TABLE punctual_ended (
    id BLOB PRIMARY KEY, q INTEGER, st INTEGER, at INTEGER, bytes INTEGER, reason TEXT
) WITHOUT ROWID;
CREATE INDEX punctual_ended_at ON punctual_ended (q, st, at);

-- Unique keys that are held. `key`: group, concurrency key and key, lengths first. `scope`: 0 until done, 1 until
-- start, 2 a window that ends at `until`.
CREATE TABLE punctual_unique (
    q INTEGER, key BLOB, id BLOB, scope INTEGER, until INTEGER, PRIMARY KEY (q, key)
) WITHOUT ROWID;
CREATE INDEX punctual_unique_until ON punctual_unique (until) WHERE until IS NOT NULL;

-- Remembered ids: derived ids without a record. `at`: when the job ended.
CREATE TABLE punctual_memory (q INTEGER, id BLOB, at INTEGER, PRIMARY KEY (q, id)) WITHOUT ROWID;
CREATE INDEX punctual_memory_at ON punctual_memory (q, at);

-- The last call of each instance (S3). `verb`: 0 enqueue, 1 reserve.
CREATE TABLE punctual_call (
    instance INTEGER, verb INTEGER, number INTEGER, at INTEGER, answer BLOB, PRIMARY KEY (instance, verb)
) WITHOUT ROWID;
CREATE INDEX punctual_call_at ON punctual_call (at);
