-- Documents; see `Store::doc`.
-- Tables: punctual_doc, punctual_docs.
-- Rules: S2, S3, S13.
-- Cost: seeks; a list reads up to 1,000 consecutive rows and 1 MiB.

-- name: get
SELECT version, value FROM punctual_doc WHERE key = ?1;

-- name: behind
SELECT key, version, value FROM punctual_doc WHERE ?1 < key ORDER BY key;

-- name: from
SELECT key, version, value FROM punctual_doc WHERE ?1 <= key ORDER BY key;

-- name: put
INSERT INTO punctual_doc (key, version, value) VALUES (?1, ?2, ?3)
ON CONFLICT (key) DO UPDATE SET version = ?2, value = ?3;

-- name: remove
DELETE FROM punctual_doc WHERE key = ?1;

-- name: docs
SELECT count, version FROM punctual_docs WHERE one = 1;

-- name: put_docs
UPDATE punctual_docs SET count = ?1, version = ?2 WHERE one = 1;
