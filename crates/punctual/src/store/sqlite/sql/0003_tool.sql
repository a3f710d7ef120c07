-- Tools: what applications need beside jobs. What came to its end a day ago is removed by the way, found by an index.

-- Rate limiters. kind: 0 a log, with the instants of the calls that count in six bytes each, oldest first; 1 a rate, with the
-- part of a millisecond of its arrival, whose milliseconds `ends` are. ends: when the row counts no more.
CREATE TABLE punctual_limit (
    lid INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    ends INTEGER NOT NULL,
    kept BLOB NOT NULL,
    UNIQUE (kind, name, key)
);
CREATE INDEX punctual_limit_ends ON punctual_limit (ends);

-- Locks. Whoever is in here past `until` holds nothing any more. Fences come from the store's row of state, as those of jobs.
CREATE TABLE punctual_lock (
    name TEXT PRIMARY KEY,
    owner BLOB NOT NULL,
    fence INTEGER NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX punctual_lock_until ON punctual_lock (until, name);
