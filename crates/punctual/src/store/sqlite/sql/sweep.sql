-- Bounded upkeep (S17); see `Store::sweep`.
-- Inputs: queue, state, now, number of rows.
-- Cost: one seek per statement if there is nothing to do; otherwise the rows removed.

-- name: expired
SELECT expires_at, id FROM punctual_expiry WHERE q = ?1 AND expires_at <= ?2 ORDER BY expires_at, id LIMIT ?3;

-- name: drop_expiry
DELETE FROM punctual_expiry WHERE q = ?1 AND expires_at = ?2 AND id = ?3;

-- name: oldest_ended
SELECT id, st, at, bytes, reason FROM punctual_ended WHERE q = ?1 AND st = ?2 ORDER BY at, id LIMIT ?3;

-- name: oldest_memory
SELECT id, at FROM punctual_memory WHERE q = ?1 ORDER BY at, id LIMIT ?2;

-- name: forget_id
DELETE FROM punctual_memory WHERE q = ?1 AND id = ?2;

-- name: past_windows
SELECT q, key FROM punctual_unique WHERE until IS NOT NULL AND until <= ?1 ORDER BY until LIMIT ?2;

-- name: forget_window
DELETE FROM punctual_unique WHERE q = ?1 AND key = ?2;

-- name: idle_calls
SELECT instance, verb FROM punctual_call WHERE at <= ?1 ORDER BY at LIMIT ?2;

-- name: forget_call
DELETE FROM punctual_call WHERE instance = ?1 AND verb = ?2;
