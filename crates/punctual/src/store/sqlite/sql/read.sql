-- Reads: get, holder, list, count, upcoming; see `Store`.
-- Cost: the rows that they return or search. `list` reads ids from the tables that the filter leaves, or from the
-- records.

-- name: total
SELECT CAST(total(waiting) + total(running) + total(done) + total(dead) + total(cancelled) AS INTEGER) FROM punctual_queue;

-- name: running_ids
SELECT id FROM punctual_lease WHERE id < ?1 ORDER BY id DESC LIMIT ?2;

-- name: ended_ids
SELECT id FROM punctual_ended WHERE id < ?1 ORDER BY id DESC LIMIT ?2;

-- name: slots_down
SELECT slot, id FROM punctual_job WHERE slot BETWEEN ?1 AND ?2 ORDER BY slot DESC;

-- name: counters
SELECT waiting, retrying, running, bytes, done, done_bytes, dead, dead_bytes, cancelled, cancelled_bytes, remembered
FROM punctual_queue;
