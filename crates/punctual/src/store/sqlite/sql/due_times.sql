-- The due times of waiting jobs, place by place; see verbs/read/due_times.rs.
-- Tables: punctual_due, punctual_grouped. Its index by time has no priority.
-- Inputs: queue, priority; then from which due time on and up to which one, and how many.
-- Cost: a seek, and an index entry for each row that is fetched. Nothing is sorted.

-- name: first
-- Behind a queue, priority and due time.
SELECT q, pri, run_at FROM punctual_due WHERE (q, pri, run_at) > (?1, ?2, ?3) ORDER BY q, pri, run_at;

-- name: first_grouped
SELECT q, 0, run_at FROM punctual_grouped WHERE (q, run_at) > (?1, ?3) ORDER BY q, run_at;

-- name: count
SELECT count(*) FROM (SELECT 1 FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at <= ?3 LIMIT ?4);

-- name: count_grouped
SELECT count(*) FROM (SELECT 1 FROM punctual_grouped WHERE q = ?1 AND run_at <= ?3 LIMIT ?4);

-- name: times
SELECT run_at FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at <= ?3 ORDER BY run_at LIMIT ?4;

-- name: times_grouped
SELECT run_at FROM punctual_grouped WHERE q = ?1 AND run_at <= ?3 ORDER BY run_at LIMIT ?4;
