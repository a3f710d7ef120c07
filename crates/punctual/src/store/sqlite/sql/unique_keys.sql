-- Unique keys (S4): the holder of each.
-- Table: punctual_unique.
-- Inputs: queue, encoded key; what is stored.
-- Cost: one seek each.

-- name: holder
SELECT id, until, lasts, short FROM punctual_unique WHERE q = ?1 AND key = ?2;

-- name: hold
INSERT INTO punctual_unique (q, key, id, scope, until, lasts) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (q, key) DO UPDATE SET id = ?3, scope = ?4, until = ?5, lasts = ?6, short = NULL;

-- name: note_window
UPDATE punctual_unique SET short = ?3 WHERE q = ?1 AND key = ?2;

-- name: free
DELETE FROM punctual_unique WHERE q = ?1 AND key = ?2 AND id = ?3;
