-- Limits of queues and concurrency keys (S15).

-- The limiter of a queue: the end of a pause that a run requested (0: never), and the theoretical arrival time of its
-- rate in milliseconds and parts. The rate's starts per period are the number of parts in a millisecond.
ALTER TABLE punctual_queue ADD COLUMN closed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN arrival INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN part INTEGER NOT NULL DEFAULT 0;

-- `key` is the digest of queue, group and concurrency key.

-- Blocked jobs: waiting, and out of the timeline until an event of their key. `most`: how many jobs of the key can
-- run when it starts, including itself.
CREATE TABLE punctual_parked (
    q INTEGER, key BLOB, pri INTEGER, run_at INTEGER, id BLOB, most INTEGER, PRIMARY KEY (q, key, pri, run_at, id)
) WITHOUT ROWID;

-- Running jobs by their key. Each counts for the limit of the key.
CREATE TABLE punctual_keyed (q INTEGER, key BLOB, id BLOB, PRIMARY KEY (q, key, id)) WITHOUT ROWID;
