-- Records of jobs.
-- Tables: punctual_job (the record), punctual_past (the history of runs).
-- Inputs: the slots where an id can be (row_number.rs) and the id, or one slot.
-- Outputs: the columns that `Job::read` names.
-- Cost: two seeks. A payload is read, but not rewritten if only run_at changes: its width stays, so SQLite overwrites
-- in place.

-- name: by_id
SELECT j.slot, j.id, j.q, j.kind, j.pri, j.run_at, j.created_at, j.version, j.expires_at, j.opts, j.payload,
    p.id, p.attempt, p.crashes, p.snoozes, p.started, p.reason, p.failures,
    p.notes, p.result, p.result_type, p.watched
FROM punctual_job j LEFT JOIN punctual_past p ON p.id = j.id WHERE j.slot BETWEEN ?1 AND ?2 AND j.id = ?3;

-- name: slots
SELECT slot, id FROM punctual_job WHERE slot BETWEEN ?1 AND ?2 ORDER BY slot;

-- name: insert
INSERT INTO punctual_job (slot, id, q, kind, pri, run_at, created_at, version, expires_at, opts, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, ?8, ?9, ?10);

-- name: set_run_at
UPDATE punctual_job SET run_at = ?2 WHERE slot = ?1;

-- name: set_asked
UPDATE punctual_job SET kind = ?2, pri = ?3, run_at = ?4, version = ?5, expires_at = ?6, opts = ?7, payload = ?8
WHERE slot = ?1;

-- name: payload_bytes
SELECT length(CAST(payload AS BLOB)) FROM punctual_job WHERE slot BETWEEN ?1 AND ?2 AND id = ?3;

-- name: delete
DELETE FROM punctual_job WHERE slot BETWEEN ?1 AND ?2 AND id = ?3;

-- name: put_history
INSERT INTO punctual_past (id, attempt, crashes, snoozes, started, reason, failures, notes, result, result_type,
    watched)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (id) DO UPDATE SET attempt = ?2, crashes = ?3, snoozes = ?4, started = ?5, reason = ?6, failures = ?7, notes = ?8,
    result = ?9, result_type = ?10, watched = ?11;

-- name: delete_history
DELETE FROM punctual_past WHERE id = ?1;
