-- Locks; see the model's toolkit/lock.rs.
-- Table: punctual_lock.
-- Cost: seeks; a list reads up to 1,000 consecutive rows.

-- name: get
SELECT owner, fence, until, lasts, short FROM punctual_lock WHERE name = ?1;

-- name: put
INSERT INTO punctual_lock (name, owner, fence, until, lasts) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO UPDATE SET owner = ?2, fence = ?3, until = ?4, lasts = ?5, short = NULL;

-- name: note
UPDATE punctual_lock SET short = ?2 WHERE name = ?1;

-- name: remove
DELETE FROM punctual_lock WHERE name = ?1;

-- name: list
SELECT name, fence, until, lasts, short FROM punctual_lock WHERE ?1 < until ORDER BY until, name LIMIT ?2;

-- name: forget
DELETE FROM punctual_lock WHERE name IN (SELECT name FROM punctual_lock WHERE until <= ?1 LIMIT ?2);
