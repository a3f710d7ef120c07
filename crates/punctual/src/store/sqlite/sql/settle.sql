-- settle, extend and the request to cancel a running job, opposite the docs of `Store::settle`. The other statements are those of place.sql.
-- Rules: S8, S10. Cost of an ack: one seek for the lease; two b-tree deletes for it; two deletes (nothing kept) or inserts.

-- name: extend
UPDATE punctual_lease SET until = ?2, flags = ?3 WHERE id = ?1;

-- name: put_notes
INSERT INTO punctual_past (id, attempt, crashes, snoozes, started, notes) VALUES (?1, 1, 0, 0, 0, ?2)
ON CONFLICT (id) DO UPDATE SET notes = ?2;
