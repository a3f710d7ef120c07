-- Concurrency keys (S15).
-- Tables: punctual_keyed (running jobs by key), punctual_parked (blocked jobs).
-- Inputs: queue, digest of the key. A group is such a key, too.
-- Cost: seeks; a count reads as many index entries as jobs run.

-- name: running
SELECT count(*) FROM punctual_keyed WHERE q = ?1 AND key = ?2;

-- name: keys_of
-- For a job without a record, whose key is unknown: reads all running jobs of the queue.
SELECT key FROM punctual_keyed WHERE q = ?1 AND id = ?2;

-- name: run
INSERT INTO punctual_keyed (q, key, id) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: run_no_more
DELETE FROM punctual_keyed WHERE q = ?1 AND key = ?2 AND id = ?3;

-- name: is_blocked
SELECT 1 FROM punctual_parked WHERE q = ?1 AND key = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: block
INSERT INTO punctual_parked (q, key, pri, run_at, id, most, gid) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING;

-- name: unblock
DELETE FROM punctual_parked WHERE q = ?1 AND key = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: first_fifo
SELECT key, pri, run_at, id, most, gid FROM punctual_parked WHERE q = ?1 AND key = ?2 ORDER BY pri, run_at, id LIMIT 1;

-- name: first_lifo
-- The last job of the first priority. Ordering by all three columns at once would sort every row of the key.
SELECT key, pri, run_at, id, most, gid FROM punctual_parked WHERE q = ?1 AND key = ?2
    AND pri = (SELECT pri FROM punctual_parked WHERE q = ?1 AND key = ?2 ORDER BY pri LIMIT 1)
ORDER BY run_at DESC, id DESC LIMIT 1;

-- name: next_blocked
-- The first blocked job after those of a key and priority.
SELECT key, pri, run_at FROM punctual_parked WHERE q = ?1 AND (key, pri) > (?2, ?3) ORDER BY key, pri, run_at LIMIT 1;

-- name: count
SELECT count(*) FROM (SELECT 1 FROM punctual_parked WHERE q = ?1 LIMIT ?2);

-- name: count_all
SELECT count(*) FROM (SELECT 1 FROM punctual_parked LIMIT ?2);

-- name: blocked
-- The blocked jobs of a queue, key by key.
SELECT key, pri, run_at, id, most, gid FROM punctual_parked WHERE q = ?1 ORDER BY key, pri, run_at, id LIMIT ?2;
