-- The schema version, the store's identity, and the migration of jobs with a group from before version 5, whose
-- groups are in the JSON of their options.
-- Cost: the migration reads all records once.

-- name: version
-- Checked by each transaction, because another process can upgrade the file.
SELECT v FROM punctual_meta WHERE k = 'schema';

-- name: put_version
INSERT OR REPLACE INTO punctual_meta (k, v) VALUES ('schema', ?1);

-- name: tables
-- All tables and indices, to recognise the version of a file that no longer says it. Reads the whole schema.
SELECT name, sql FROM sqlite_schema WHERE name LIKE 'punctual_%' ORDER BY name;

-- name: identity
-- The store's identity. Versions that do not know it leave it as it is.
SELECT v FROM punctual_meta WHERE k = 'identity';

-- name: put_identity
-- The first one stays.
INSERT INTO punctual_meta (k, v) VALUES ('identity', ?1) ON CONFLICT DO NOTHING;

-- name: with_options
SELECT id, q, pri, run_at, opts FROM punctual_job WHERE opts IS NOT NULL;

-- name: leave_due
DELETE FROM punctual_due WHERE q = ?1 AND pri = ?2 AND run_at = ?3 AND id = ?4;

-- name: return_to
UPDATE punctual_parked SET gid = ?5 WHERE q = ?1 AND pri = ?2 AND run_at = ?3 AND id = ?4;

-- name: is_keyed
UPDATE punctual_lease SET flags = flags | ?2 WHERE id = ?1;

-- name: run
INSERT INTO punctual_keyed (q, key, id) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: file_group
-- Filed as coming, because groups had no limits before.
INSERT INTO punctual_group (q, gid, name, place, at, closed, arrival, part) VALUES (?1, ?2, ?3, 1, ?4, 0, 0, 0)
ON CONFLICT (q, gid) DO UPDATE SET at = min(at, ?4);

-- name: note_groups
-- A queue whose jobs with a group are all running learns of groups when the first one waits.
UPDATE punctual_queue SET version = 1 WHERE qid IN (SELECT q FROM punctual_group);
UPDATE punctual_state SET grouped = EXISTS (SELECT 1 FROM punctual_group);
