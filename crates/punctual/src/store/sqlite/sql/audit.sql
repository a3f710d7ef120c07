-- audit, opposite the docs of `Store::audit`: records by slot, then entries of no record, then counters.
-- A list of entries gives the columns of its key first, which are also what it goes on behind.
-- Cost: a slice looks at up to 1,000 rows; counting anew reads every index once, and the head of every record.

-- name: records
SELECT slot, id FROM punctual_job WHERE slot >= ?1 ORDER BY slot LIMIT ?2;

-- name: places
SELECT (SELECT 1 FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at = ?3 AND id = ?4),
    (SELECT st FROM punctual_ended WHERE id = ?4);

-- name: move_record
UPDATE punctual_job SET slot = ?2 WHERE slot = ?1;

-- name: due
SELECT q, pri, run_at, id FROM punctual_due WHERE (q, pri, run_at, id) > (?1, ?2, ?3, ?4)
ORDER BY q, pri, run_at, id LIMIT ?5;

-- name: lease
SELECT id, q FROM punctual_lease WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: ended
SELECT id, q FROM punctual_ended WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: expiry
SELECT q, expires_at, id FROM punctual_expiry WHERE (q, expires_at, id) > (?1, ?2, ?3)
ORDER BY q, expires_at, id LIMIT ?4;

-- name: unique
SELECT q, key, id, until FROM punctual_unique WHERE (q, key) > (?1, ?2) ORDER BY q, key LIMIT ?3;

-- name: past
SELECT id FROM punctual_past WHERE id > ?1 ORDER BY id LIMIT ?2;

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

-- name: drop_past
DELETE FROM punctual_past WHERE id = ?1;

-- name: count_places
SELECT (SELECT count(*) FROM punctual_due WHERE q = ?1),
    (SELECT count(*) FROM punctual_lease WHERE q = ?1),
    (SELECT CAST(total(length(payload)) AS INTEGER) FROM punctual_job WHERE q = ?1),
    (SELECT count(*) FROM punctual_memory WHERE q = ?1);

-- name: count_ended
SELECT st, count(*), CAST(total(bytes) AS INTEGER) FROM punctual_ended WHERE q = ?1 GROUP BY st;

-- name: later_attempts
SELECT id FROM punctual_past WHERE attempt > 1;
