-- Tools: rate limiters, locks and leaderboards. Rows that expired a day ago are removed on the way, through an index.

-- Rate limiters. kind: 0 a log, with the instants of the calls that count, six bytes each, oldest first; 1 a rate,
-- with the parts of its arrival, whose milliseconds are `ends`. ends: when the row expires.
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

-- Locks. After `until` the lock is free. Fences come from the store's state row, as those of jobs.
CREATE TABLE punctual_lock (
    name TEXT PRIMARY KEY,
    owner BLOB NOT NULL,
    fence INTEGER NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX punctual_lock_until ON punctual_lock (until, name);

-- Leaderboards. bucket: 0 none, else its length in ms; newest: the bucket that was added to last; size: members;
-- ends: when all buckets are obsolete.
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

-- Members by name, and by rank. low: the score, negated, so that ranks are the order of an index. In a window, it is
-- the sum of the member's parts.
CREATE TABLE punctual_score (
    bid INTEGER NOT NULL,
    member TEXT NOT NULL,
    low INTEGER NOT NULL,
    PRIMARY KEY (bid, member)
) WITHOUT ROWID;
CREATE INDEX punctual_score_rank ON punctual_score (bid, low, member);

-- For a board with a window: what was added in each bucket.
CREATE TABLE punctual_part (
    bid INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    member TEXT NOT NULL,
    score INTEGER NOT NULL,
    PRIMARY KEY (bid, bucket, member)
) WITHOUT ROWID;
