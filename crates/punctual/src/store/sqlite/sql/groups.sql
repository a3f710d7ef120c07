-- Groups (S15, S16); see the model's state/groups.rs.
-- Tables: punctual_grouped (their waiting jobs), punctual_group (where they are filed).
-- Inputs: queue, digest of the group's name.
-- Cost: seeks. A group that cannot start anything is never read.

-- name: put
INSERT INTO punctual_grouped (q, gid, pri, run_at, id) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING;

-- name: delete
DELETE FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: is_waiting
SELECT 1 FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: first_run_at
-- For each priority. The least is when the group's first job is due.
SELECT (SELECT run_at FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = 0 ORDER BY run_at LIMIT 1),
    (SELECT run_at FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = 1 ORDER BY run_at LIMIT 1),
    (SELECT run_at FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = 2 ORDER BY run_at LIMIT 1);

-- name: head_fifo
SELECT run_at, id FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = ?3 AND run_at <= ?4
ORDER BY run_at, id LIMIT 1;

-- name: head_lifo
SELECT run_at, id FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = ?3 AND run_at <= ?4
ORDER BY run_at DESC, id DESC LIMIT 1;

-- name: first_grouped
SELECT run_at FROM punctual_grouped WHERE q = ?1 ORDER BY run_at LIMIT 1;

-- name: grouped
-- The jobs of a queue, group by group.
SELECT gid, pri, run_at, id FROM punctual_grouped WHERE q = ?1 ORDER BY gid, pri, run_at, id LIMIT ?2;

-- name: group
SELECT gid, name, place, at, closed, arrival, part FROM punctual_group WHERE q = ?1 AND gid = ?2;

-- name: groups
-- The groups of a place, least `at` first.
SELECT gid, name, place, at, closed, arrival, part FROM punctual_group
WHERE q = ?1 AND place = ?2 AND at <= ?3 ORDER BY at, gid LIMIT ?4;

-- name: first_at
-- NULL would hide the others.
SELECT at FROM punctual_group WHERE q = ?1 AND place = ?2 AND at >= -9223372036854775808 ORDER BY at LIMIT 1;

-- name: file
INSERT INTO punctual_group (q, gid, name, place, at, closed, arrival, part) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (q, gid) DO UPDATE SET name = ?3, place = ?4, at = ?5, closed = ?6, arrival = ?7, part = ?8;

-- name: forget
DELETE FROM punctual_group WHERE q = ?1 AND gid = ?2;

-- name: forget_idle
-- For all queues: groups without jobs whose state is obsolete.
DELETE FROM punctual_group WHERE (q, gid) IN (
    SELECT q, gid FROM punctual_group WHERE place = 3 AND at < ?1 ORDER BY at LIMIT ?2
);
