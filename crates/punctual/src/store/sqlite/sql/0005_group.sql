-- Fair sharing between groups, and their limits (S15, S16). `move_groups` in schema.rs moves the jobs with a group of
-- older files, because SQL cannot compute the digests.

-- The state of a queue for its groups: the tag of the group that was served last; the tag of the ungrouped jobs; when
-- groups were last activated; how often their limits changed (0: the queue never had groups).
ALTER TABLE punctual_queue ADD COLUMN ring INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN own INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN seen INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
-- Whether any queue has groups.
ALTER TABLE punctual_state ADD COLUMN grouped INTEGER NOT NULL DEFAULT 0;

-- `gid` is the digest of a group's name. It is also a key in punctual_keyed: running jobs by their group.

-- Waiting jobs with a group. They are never in punctual_due.
CREATE TABLE punctual_grouped (
    q INTEGER, gid BLOB, pri INTEGER, run_at INTEGER, id BLOB, PRIMARY KEY (q, gid, pri, run_at, id)
) WITHOUT ROWID;
-- For counts of due jobs of all groups.
CREATE INDEX punctual_grouped_at ON punctual_grouped (q, run_at);
-- The group to which a blocked job returns; NULL if it has none.
ALTER TABLE punctual_parked ADD COLUMN gid BLOB;

-- Groups with waiting jobs or with state. `place` and `at`: 0 active, its tag; 1 coming, when its first job is due
-- and can start; 2 blocked by its concurrency, the number of its limits; 3 without jobs, when its state can be
-- forgotten. `closed`, `arrival` and `part` are its limiter, as those of a queue.
CREATE TABLE punctual_group (
    q INTEGER, gid BLOB, name TEXT, place INTEGER, at INTEGER, closed INTEGER, arrival INTEGER, part INTEGER,
    PRIMARY KEY (q, gid)
) WITHOUT ROWID;
CREATE INDEX punctual_group_place ON punctual_group (q, place, at, gid);
CREATE INDEX punctual_group_idle ON punctual_group (at) WHERE place = 3;
