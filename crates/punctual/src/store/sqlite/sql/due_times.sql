-- The due times of waiting jobs; see verbs/read/due_times.rs.
-- Tables: punctual_due, punctual_grouped.
-- Inputs: the place behind which to begin: queue, priority, due time.
-- Outputs: the places behind it, in order.
-- Cost: a seek, and an index entry for each row that is fetched. Nothing is sorted.

-- name: ungrouped
SELECT q, pri, run_at FROM punctual_due WHERE (q, pri, run_at) > (?1, ?2, ?3) ORDER BY q, pri, run_at;

-- name: grouped
-- Their index has no priority.
SELECT q, 0, run_at FROM punctual_grouped WHERE (q, run_at) > (?1, ?3) ORDER BY q, run_at;
