-- Where a job stands: exactly one of punctual_due (waiting), punctual_lease (running), punctual_ended (done, dead, cancelled).
-- Rules: S2, S7, S17. Cost: one seek per statement and b-tree.
--
-- An insert that meets a row means that the file was damaged and a job is in two places: it must not fail, or the job would
-- block its queue for ever; `audit` counts anew.

-- name: is_due
SELECT 1 FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at = ?3 AND id = ?4;

-- name: put_due
INSERT INTO punctual_due (q, pri, run_at, id) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING;

-- name: delete_due
DELETE FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at = ?3 AND id = ?4;

-- name: put_expiry
INSERT INTO punctual_expiry (q, expires_at, id) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: delete_expiry
DELETE FROM punctual_expiry WHERE q = ?1 AND expires_at = ?2 AND id = ?3;

-- name: lease
SELECT fence, q, until, lasts, started_at, bytes, flags, worker FROM punctual_lease WHERE id = ?1;

-- name: put_lease
INSERT INTO punctual_lease (id, fence, q, until, lasts, started_at, bytes, flags, worker)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING;

-- name: put_lease_flags
UPDATE punctual_lease SET flags = ?2 WHERE id = ?1;

-- name: delete_lease
DELETE FROM punctual_lease WHERE id = ?1;

-- name: ended
SELECT st, at, bytes, reason FROM punctual_ended WHERE id = ?1;

-- name: put_ended
INSERT INTO punctual_ended (id, q, st, at, bytes, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (id) DO UPDATE SET q = ?2, st = ?3, at = ?4, bytes = ?5, reason = ?6;

-- name: delete_ended
DELETE FROM punctual_ended WHERE id = ?1;

-- name: remember
INSERT INTO punctual_memory (q, id, at) VALUES (?1, ?2, ?3);

-- name: remember_again
UPDATE punctual_memory SET at = ?3 WHERE q = ?1 AND id = ?2;

-- name: remembered
SELECT at FROM punctual_memory WHERE q = ?1 AND id = ?2;
