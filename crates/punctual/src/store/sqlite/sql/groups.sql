-- Groups (S15, S16), opposite store/model/fair.rs: their jobs (punctual_grouped), and where they are filed (punctual_group).
-- Inputs: queue, digest of the group's name. Cost: seeks; nothing looks at a group that can't start anything.

-- name: put
INSERT INTO punctual_grouped (q, gid, pri, run_at, id) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING;

-- name: delete
DELETE FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: is_waiting
SELECT 1 FROM punctual_grouped WHERE q = ?1 AND gid = ?2 AND pri = ?3 AND run_at = ?4 AND id = ?5;

-- name: first_run_at
-- Of each priority: the least of them is when the group's first job is due.
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

-- name: count_due
SELECT count(*) FROM (SELECT 1 FROM punctual_grouped WHERE q = ?1 AND run_at <= ?2 LIMIT ?3);

-- name: histogram
SELECT (run_at - ?2) / ?4, count(*) FROM (
    SELECT run_at FROM punctual_grouped WHERE q = ?1 AND run_at > ?2 AND run_at < ?3 ORDER BY run_at LIMIT ?5
) GROUP BY 1;

-- name: grouped
-- Of a queue, group by group.
SELECT gid, pri, run_at, id FROM punctual_grouped WHERE q = ?1 ORDER BY gid, pri, run_at, id LIMIT ?2;

-- name: group
SELECT gid, name, place, at, closed, arrival, part FROM punctual_group WHERE q = ?1 AND gid = ?2;

-- name: groups
-- Those of a place, least `at` first.
SELECT gid, name, place, at, closed, arrival, part FROM punctual_group
WHERE q = ?1 AND place = ?2 AND at <= ?3 ORDER BY at, gid LIMIT ?4;

-- name: first_at
SELECT at FROM punctual_group WHERE q = ?1 AND place = ?2 ORDER BY at LIMIT 1;

-- name: file
INSERT INTO punctual_group (q, gid, name, place, at, closed, arrival, part) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (q, gid) DO UPDATE SET name = ?3, place = ?4, at = ?5, closed = ?6, arrival = ?7, part = ?8;

-- name: forget
DELETE FROM punctual_group WHERE q = ?1 AND gid = ?2;

-- name: forget_idle
-- Of all queues: gates that say nothing any more.
DELETE FROM punctual_group WHERE (q, gid) IN (
    SELECT q, gid FROM punctual_group WHERE place = 3 AND at < ?1 ORDER BY at LIMIT ?2
);
