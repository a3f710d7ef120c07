-- Concurrency keys (S15): running jobs by their key (punctual_keyed), and jobs that wait for their turn (punctual_parked).
-- Inputs: queue, digest of the key; a group is such a key, too. Cost: seeks; counting reads as many index entries as run.

-- name: running
SELECT count(*) FROM punctual_keyed WHERE q = ?1 AND key = ?2;

-- name: keys_of
-- Of a job without a record, which says no key: looks at all that run in the queue.
SELECT key FROM punctual_keyed WHERE q = ?1 AND id = ?2;

-- name: run
INSERT INTO punctual_keyed (q, key, id) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: run_no_more
DELETE FROM punctual_keyed WHERE q = ?1 AND key = ?2 AND id = ?3;

-- name: is_parked
SELECT 1 FROM punctual_parked WHERE q = ?1 AND key = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: park
INSERT INTO punctual_parked (q, key, pri, run_at, id, most, gid) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING;

-- name: unpark
DELETE FROM punctual_parked WHERE q = ?1 AND key = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: first_fifo
SELECT key, pri, run_at, id, most, gid FROM punctual_parked WHERE q = ?1 AND key = ?2 ORDER BY pri, run_at, id LIMIT 1;

-- name: first_lifo
-- The last one of the first priority. Ordered by all three at once every row of the key would be sorted.
SELECT key, pri, run_at, id, most, gid FROM punctual_parked WHERE q = ?1 AND key = ?2
    AND pri = (SELECT pri FROM punctual_parked WHERE q = ?1 AND key = ?2 ORDER BY pri LIMIT 1)
ORDER BY run_at DESC, id DESC LIMIT 1;

-- name: count
SELECT count(*) FROM (SELECT 1 FROM punctual_parked WHERE q = ?1 LIMIT ?2);

-- name: parked
-- Of a queue, key by key.
SELECT key, pri, run_at, id, most, gid FROM punctual_parked WHERE q = ?1 ORDER BY key, pri, run_at, id LIMIT ?2;
