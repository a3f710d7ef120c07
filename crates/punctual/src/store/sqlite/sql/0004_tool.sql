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

-- Leaderboards. bucket: 0 none, else the ms of one; newest: the bucket that was added to last; size: members; ends: when all
-- buckets are past.
CREATE TABLE punctual_board (
    bid INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    buckets INTEGER NOT NULL,
    newest INTEGER NOT NULL,
    size INTEGER NOT NULL,
    ends INTEGER,
    UNIQUE (name, bucket, buckets)
);
CREATE INDEX punctual_board_ends ON punctual_board (ends) WHERE ends IS NOT NULL;

-- Members by name, and by rank. low: the score, negated, so that ranks are the order of an index; of a window the sum of its parts.
CREATE TABLE punctual_score (
    bid INTEGER NOT NULL,
    member TEXT NOT NULL,
    low INTEGER NOT NULL,
    PRIMARY KEY (bid, member)
) WITHOUT ROWID;
CREATE INDEX punctual_score_rank ON punctual_score (bid, low, member);

-- Of a board with a window: what was added in a bucket.
CREATE TABLE punctual_part (
    bid INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    member TEXT NOT NULL,
    score INTEGER NOT NULL,
    PRIMARY KEY (bid, bucket, member)
) WITHOUT ROWID;
