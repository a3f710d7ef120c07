-- Fair sharing between groups, and their limits (S15, S16). Jobs of older files with a group are moved by `move_groups` in schema.rs:
-- a digest is more than SQL can do.

-- What a queue remembers for its groups: the tag of whom it served last; the tag of the jobs without a group; when groups were let in
-- last; and how often their limits changed, 0 for a queue that never had groups.
ALTER TABLE punctual_queue ADD COLUMN ring INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN own INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN seen INTEGER NOT NULL DEFAULT 0;
ALTER TABLE punctual_queue ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
-- Whether any queue has.
ALTER TABLE punctual_state ADD COLUMN grouped INTEGER NOT NULL DEFAULT 0;

-- `gid` is the digest of a group's name. It is also a key of punctual_keyed: running jobs by their group.

-- Waiting jobs with a group: they never stand in punctual_due.
CREATE TABLE punctual_grouped (
    q INTEGER, gid BLOB, pri INTEGER, run_at INTEGER, id BLOB, PRIMARY KEY (q, gid, pri, run_at, id)
) WITHOUT ROWID;
-- For counts of what is due, whoever's it is.
CREATE INDEX punctual_grouped_at ON punctual_grouped (q, run_at);
-- Where a parked job returns to; NULL: it has no group.
ALTER TABLE punctual_parked ADD COLUMN gid BLOB;

-- Groups that wait, or that there is something to remember of. `place` and `at`: 0 in the ring, its tag; 1 coming, when its first job
-- is due and may start; 2 blocked by its concurrency, the number of its limits; 3 without jobs,
-- when its gate may be forgotten. `closed`, `arrival` and `part` are its gate, as a queue's.
CREATE TABLE punctual_group (
    q INTEGER, gid BLOB, name TEXT, place INTEGER, at INTEGER, closed INTEGER, arrival INTEGER, part INTEGER,
    PRIMARY KEY (q, gid)
) WITHOUT ROWID;
CREATE INDEX punctual_group_place ON punctual_group (q, place, at, gid);
CREATE INDEX punctual_group_idle ON punctual_group (at) WHERE place = 3;
