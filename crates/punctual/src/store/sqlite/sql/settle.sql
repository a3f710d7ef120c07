-- Settle, extend, and the cancel of a running job; see `Store::settle`. The other statements are in places.sql.
-- Tables: punctual_lease, punctual_past.
-- Rules: S8, S10.
-- Cost of an ack: one seek for the lease and two b-tree deletes for it; then two deletes (if nothing is kept) or
-- inserts.

-- name: extend
UPDATE punctual_lease SET until = ?2, lasts = ?3, flags = ?4 WHERE id = ?1;

-- name: put_notes
INSERT INTO punctual_past (id, attempt, crashes, snoozes, started, notes) VALUES (?1, 1, 0, 0, 0, ?2)
ON CONFLICT (id) DO UPDATE SET notes = ?2;
