-- Limits of queues and concurrency keys (S15).

-- Until when a run closed a queue's gate (0: never), and when all that started would have, had it started evenly: milliseconds, and
-- parts of one, as many as its rate has starts in a period.
ALTER TABLE punctual_queue ADD COLUMN closed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN arrival INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN part INTEGER NOT NULL DEFAULT 0;

-- `key` is the digest of queue, group and concurrency key.

-- Waiting jobs that left the timeline until it is their turn among the jobs of their key. `most`: how many of the key may run
-- as the job starts, itself included.
CREATE TABLE punctual_parked (
    q INTEGER, key BLOB, pri INTEGER, run_at INTEGER, id BLOB, most INTEGER, PRIMARY KEY (q, key, pri, run_at, id)
) WITHOUT ROWID;

-- Running jobs by their key: each holds one of its places.
CREATE TABLE punctual_keyed (q INTEGER, key BLOB, id BLOB, PRIMARY KEY (q, key, id)) WITHOUT ROWID;
