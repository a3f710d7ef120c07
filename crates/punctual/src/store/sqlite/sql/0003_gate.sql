-- Concurrency keys (S15). `key`: the digest of queue, group and key.

-- Waiting jobs that left the timeline until it is their turn among the jobs of their key. `most`: how many of the key may run
-- as the job starts, itself included.
CREATE TABLE punctual_parked (
    q INTEGER, key BLOB, pri INTEGER, run_at INTEGER, id BLOB, most INTEGER, PRIMARY KEY (q, key, pri, run_at, id)
) WITHOUT ROWID;

-- Running jobs by their key: each holds one of its places.
CREATE TABLE punctual_keyed (q INTEGER, key BLOB, id BLOB, PRIMARY KEY (q, key, id)) WITHOUT ROWID;
