-- settle, extend and the request to cancel a running job, opposite the docs of `Store::settle`. The other statements are those of place.sql.
-- Rules: S8, S10. Cost of an ack: one seek for the lease; two b-tree deletes for it; two deletes (nothing kept) or inserts.

-- name: extend
UPDATE punctual_lease SET until = ?2 WHERE id = ?1;

-- name: ask_cancel
UPDATE punctual_lease SET flags = ?2 WHERE id = ?1;
