-- Reserve and take; see `Store::reserve`: expired leases, due jobs in order, what is next.
-- Tables: punctual_lease, punctual_due.
-- Inputs: queue, priority, now.
-- Rules: S5, S6, S9.
-- Cost: index ranges of exactly the rows used.

-- name: past_their_time
SELECT until, id, lasts FROM punctual_lease WHERE q = ?1 AND until <= ?2 ORDER BY until, id LIMIT ?3;

-- name: last_to_end
SELECT id, until, lasts FROM punctual_lease WHERE q = ?1 ORDER BY until DESC, id DESC LIMIT ?2;

-- name: shorten
UPDATE punctual_lease SET until = ?2 WHERE id = ?1;

-- name: end_endless
-- An end that is no number sorts before or behind all numbers. Its holder may live, so it gets its length from now, a day at most.
UPDATE punctual_lease SET until = ?2 + CASE WHEN typeof(lasts) = 'integer' THEN min(max(lasts, 0), 86400000) ELSE 0 END WHERE id IN (
    SELECT id FROM punctual_lease WHERE q = ?1 AND until IS NULL UNION ALL
    SELECT id FROM punctual_lease WHERE q = ?1 AND until >= ''
);

-- name: due_fifo
SELECT run_at, id FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at <= ?3 ORDER BY run_at, id LIMIT ?4;

-- name: due_lifo
SELECT run_at, id FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at <= ?3
ORDER BY run_at DESC, id DESC LIMIT ?4;

-- name: leave_fifo
-- The rows that `due_fifo` returned, up to the last one used.
DELETE FROM punctual_due WHERE q = ?1 AND pri = ?2 AND (run_at, id) <= (?3, ?4);

-- name: leave_lifo
-- The rows that `due_lifo` returned, up to the last one used.
DELETE FROM punctual_due WHERE q = ?1 AND pri = ?2 AND (run_at, id) >= (?3, ?4) AND run_at <= ?5;

-- name: first_due
SELECT run_at FROM punctual_due WHERE q = ?1 AND pri = ?2 ORDER BY run_at LIMIT 1;

-- name: first_to_end
SELECT until, lasts FROM punctual_lease WHERE q = ?1 ORDER BY until, id LIMIT ?2;
