-- State that a transaction reads once and writes once: the store's state row, queues with their counters, last calls.
-- Tables: punctual_state, punctual_meta, punctual_queue, punctual_call, punctual_lease.
-- Rules: S3, S10, S14, S17.
-- Cost: one seek each; `doubt` two.

-- name: state
SELECT fence, seen, grace, reach, grouped FROM punctual_state WHERE one = 1;

-- name: put_state
INSERT OR REPLACE INTO punctual_state (one, fence, seen, grace, reach, grouped) VALUES (1, ?1, ?2, ?3, ?4, ?5);

-- name: silences
-- The silences that may hold leases back (S14), as `core/silence.rs` encodes them.
SELECT v FROM punctual_meta WHERE k = 'silences';

-- name: put_silences
INSERT OR REPLACE INTO punctual_meta (k, v) VALUES ('silences', ?1);

-- name: doubt
-- How far the clock is believed (S17), as `core/steady.rs` has it: when the mark after a gap came, and steady time then.
SELECT max(iif(k = 'doubt_since', v, NULL)), max(iif(k = 'doubt_from', v, NULL)) FROM punctual_meta
WHERE k IN ('doubt_since', 'doubt_from');

-- name: put_doubt
-- One of the two.
INSERT OR REPLACE INTO punctual_meta (k, v) VALUES (?1, ?2);

-- name: any_lease
SELECT 1 FROM punctual_lease LIMIT 1;

-- name: queue_by_name
SELECT qid, name, settings, waiting, retrying, running, bytes,
    done, done_bytes, dead, dead_bytes, cancelled, cancelled_bytes, remembered, closed, arrival, part,
    ring, own, seen, version
FROM punctual_queue WHERE name = ?1;

-- name: queue_by_qid
SELECT qid, name, settings, waiting, retrying, running, bytes,
    done, done_bytes, dead, dead_bytes, cancelled, cancelled_bytes, remembered, closed, arrival, part,
    ring, own, seen, version
FROM punctual_queue WHERE qid = ?1;

-- name: new_queue
-- A number is used once, also if the row of a queue is gone: rows of its jobs may be left. 2^31: no queue has such a number.
INSERT INTO punctual_queue (qid, name) SELECT 1 + max(
    coalesce((SELECT max(qid) FROM punctual_queue WHERE qid < 2147483648), 0),
    coalesce((SELECT max(q) FROM punctual_due WHERE q < 2147483648), 0),
    coalesce((SELECT max(q) FROM punctual_grouped WHERE q < 2147483648), 0),
    coalesce((SELECT max(q) FROM punctual_parked WHERE q < 2147483648), 0),
    coalesce((SELECT max(q) FROM punctual_lease WHERE q < 2147483648), 0),
    coalesce((SELECT max(q) FROM punctual_ended WHERE q < 2147483648), 0)
), ?1;

-- name: found_queue
-- For an audit: a queue of which rows exist, or whose name can not be read.
INSERT INTO punctual_queue (qid, name) VALUES (?1, ?2) ON CONFLICT (qid) DO UPDATE SET name = ?2;

-- name: put_counters
UPDATE punctual_queue SET waiting = ?2, retrying = ?3, running = ?4, bytes = ?5,
    done = ?6, done_bytes = ?7, dead = ?8, dead_bytes = ?9, cancelled = ?10, cancelled_bytes = ?11, remembered = ?12
WHERE qid = ?1;

-- name: put_limiter
UPDATE punctual_queue SET closed = ?2, arrival = ?3, part = ?4 WHERE qid = ?1;

-- name: put_active_groups
UPDATE punctual_queue SET ring = ?2, own = ?3, seen = ?4, version = ?5 WHERE qid = ?1;

-- name: put_settings
UPDATE punctual_queue SET settings = ?2 WHERE qid = ?1;

-- name: call
SELECT number, answer FROM punctual_call WHERE instance = ?1 AND verb = ?2;

-- name: put_call
INSERT INTO punctual_call (instance, verb, number, at, answer) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (instance, verb) DO UPDATE SET number = ?3, at = ?4, answer = ?5;
