-- Unique keys (S4): who holds one. Cost: one seek each.

-- name: holder
SELECT id, until FROM punctual_unique WHERE q = ?1 AND key = ?2;

-- name: hold
INSERT INTO punctual_unique (q, key, id, scope, until) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (q, key) DO UPDATE SET id = ?3, scope = ?4, until = ?5;

-- name: free
DELETE FROM punctual_unique WHERE q = ?1 AND key = ?2 AND id = ?3;
