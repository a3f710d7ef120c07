-- Queues; see `Store::queue`. Counters and settings are in tx.sql, the rows of the timeline in reserve.sql.
-- Tables: punctual_due, punctual_queue.
-- Cost: seeks; counting due jobs reads up to 100,000 index entries.

-- name: count_due
SELECT count(*) FROM (SELECT 1 FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at <= ?3 LIMIT ?4);

-- name: names
SELECT name FROM punctual_queue WHERE ?1 IS NULL OR ?1 < name ORDER BY name LIMIT ?2;

-- name: queues
SELECT qid FROM punctual_queue WHERE ?1 < name ORDER BY name LIMIT ?2;

-- name: every_queue
SELECT qid FROM punctual_queue ORDER BY name;
