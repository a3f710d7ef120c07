-- Audit; see `Store::audit`: records by slot with their leases, then entries without a record, then counters.
-- Tables: all. A list returns the columns of its key first; the next slice continues after them.
-- Rules: S2, S13.
-- Cost: a slice reads up to 1,000 rows in the order of a primary key, and the records that it needs.

-- name: records
SELECT slot, id FROM punctual_job WHERE slot >= ?1 ORDER BY slot LIMIT ?2;

-- name: has_ended
SELECT 1 FROM punctual_ended WHERE id = ?1;

-- name: move_record
UPDATE punctual_job SET slot = ?2 WHERE slot = ?1;

-- name: name_record
UPDATE punctual_job SET slot = ?2, id = ?3 WHERE slot = ?1;

-- name: queues_of
-- The queues in which a job runs, has ended, or is by its record.
SELECT (SELECT q FROM punctual_lease WHERE id = ?1), (SELECT q FROM punctual_ended WHERE id = ?1),
    (SELECT q FROM punctual_job WHERE slot = ?2);

-- name: set_queue
UPDATE punctual_job SET q = ?2 WHERE slot = ?1;

-- name: mend_lease
-- Gives a lease the queue of its record, and an end that comes.
UPDATE punctual_lease SET q = ?2, until = ?3 WHERE id = ?1;

-- name: due
SELECT q, pri, run_at, id FROM punctual_due WHERE (q, pri, run_at, id) > (?1, ?2, ?3, ?4)
ORDER BY q, pri, run_at, id LIMIT ?5;

-- name: lease
SELECT id, q FROM punctual_lease WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: ended
SELECT id, q, st, bytes FROM punctual_ended WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: expiry
SELECT q, expires_at, id FROM punctual_expiry WHERE (q, expires_at, id) > (?1, ?2, ?3)
ORDER BY q, expires_at, id LIMIT ?4;

-- name: unique
SELECT q, key, id, until FROM punctual_unique WHERE (q, key) > (?1, ?2) ORDER BY q, key LIMIT ?3;

-- name: history
SELECT p.id, p.attempt, octet_length(p.result), e.q FROM punctual_past p LEFT JOIN punctual_ended e ON e.id = p.id
WHERE p.id > ?1 ORDER BY p.id LIMIT ?2;

-- name: blocked
SELECT q, key, pri, run_at, id FROM punctual_parked WHERE (q, key, pri, run_at, id) > (?1, ?2, ?3, ?4, ?5)
ORDER BY q, key, pri, run_at, id LIMIT ?6;

-- name: keyed
SELECT q, key, id FROM punctual_keyed WHERE (q, key, id) > (?1, ?2, ?3) ORDER BY q, key, id LIMIT ?4;

-- name: group
SELECT q, gid, name FROM punctual_group WHERE (q, gid) > (?1, ?2) ORDER BY q, gid LIMIT ?3;

-- name: grouped
SELECT q, gid, pri, run_at, id FROM punctual_grouped WHERE (q, gid, pri, run_at, id) > (?1, ?2, ?3, ?4, ?5)
ORDER BY q, gid, pri, run_at, id LIMIT ?6;

-- name: runs_as
SELECT 1 FROM punctual_keyed WHERE q = ?1 AND key = ?2 AND id = ?3;

-- name: drop_blocked
DELETE FROM punctual_parked WHERE q = ?1 AND key = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: drop_keyed
DELETE FROM punctual_keyed WHERE q = ?1 AND key = ?2 AND id = ?3;

-- name: drop_group
DELETE FROM punctual_group WHERE q = ?1 AND gid = ?2;

-- name: drop_grouped
DELETE FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: drop_due
DELETE FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at = ?3 AND id = ?4;

-- name: drop_lease
DELETE FROM punctual_lease WHERE id = ?1;

-- name: drop_ended
DELETE FROM punctual_ended WHERE id = ?1;

-- name: drop_expiry
DELETE FROM punctual_expiry WHERE q = ?1 AND expires_at = ?2 AND id = ?3;

-- name: drop_unique
DELETE FROM punctual_unique WHERE q = ?1 AND key = ?2;

-- name: drop_history
DELETE FROM punctual_past WHERE id = ?1;

-- name: bytes
SELECT slot, q, octet_length(payload) FROM punctual_job WHERE slot > ?1 ORDER BY slot LIMIT ?2;

-- name: memory
SELECT q, id FROM punctual_memory WHERE (q, id) > (?1, ?2) ORDER BY q, id LIMIT ?3;

-- name: queues
SELECT qid FROM punctual_queue WHERE qid > ?1 ORDER BY qid LIMIT ?2;

-- name: repairs
-- How often a repair was made; no row if never.
SELECT v FROM punctual_meta WHERE k = 'repairs';

-- name: raise_repairs
INSERT INTO punctual_meta VALUES ('repairs', 1) ON CONFLICT (k) DO UPDATE SET v = CAST(v AS INTEGER) + 1;
