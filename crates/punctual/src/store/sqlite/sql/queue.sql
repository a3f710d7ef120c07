-- Queues; see `Store::queue`. Counters and settings are in tx.sql.
-- Table: punctual_queue.
-- Cost: seeks.

-- name: names
SELECT name FROM punctual_queue WHERE ?1 IS NULL OR ?1 < name ORDER BY name LIMIT ?2;

-- name: queues
SELECT qid FROM punctual_queue WHERE ?1 < name ORDER BY name LIMIT ?2;
