-- Rate limiters; see the model's toolkit/limit.rs.
-- Table: punctual_limit.
-- Cost: seeks; a log is rewritten with each call that counts, up to 60 KB.

-- name: get
SELECT lid, ends, kept FROM punctual_limit WHERE kind = ?1 AND name = ?2 AND key = ?3;

-- name: new
INSERT INTO punctual_limit (kind, name, key, ends, kept) VALUES (?1, ?2, ?3, ?4, ?5);

-- name: put
UPDATE punctual_limit SET ends = ?2, kept = ?3 WHERE lid = ?1;

-- name: forget
DELETE FROM punctual_limit WHERE lid IN (SELECT lid FROM punctual_limit WHERE ends <= ?1 LIMIT ?2);
