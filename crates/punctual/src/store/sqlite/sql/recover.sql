-- Recovery of a damaged file; see `SqliteStore::recover`: what the tables of a new file are, and which jobs wait.
-- Tables: those of SQLite; doc, docs, job, queue, lease, ended, due, expiry, grouped, parked.
-- Rules: S2.
-- Cost: once for each recovery; `columns` once for each table. All but the first two read their tables whole.

-- name: tables
-- The tables of punctual, whether they are WITHOUT ROWID, and their root pages.
SELECT t.name, t.wr, s.rootpage FROM pragma_table_list t JOIN sqlite_schema s ON s.type = 'table' AND s.name = t.name
WHERE t.schema = 'main' AND t.name GLOB 'punctual_*' ORDER BY t.name;

-- name: columns
-- The columns of a table, in the order of its rows. In a table WITHOUT ROWID, those of the key come first, as they are declared.
SELECT name, type, 0 < pk FROM pragma_table_info(?1) ORDER BY cid;

-- name: count_docs
-- Makes the row of documents again from the documents.
INSERT OR REPLACE INTO punctual_docs (one, count, version)
SELECT 1, count(*), max(coalesce((SELECT version FROM punctual_docs), 0), coalesce(max(version), 0)) FROM punctual_doc;

-- name: is_complete
-- Whether no end, lease or queue is missing, as far as the counters of all queues together show. Then each record without an end or a lease waits.
SELECT (SELECT total(done + dead + cancelled) FROM punctual_queue)
        = (SELECT count(*) FROM punctual_ended WHERE id IN (SELECT id FROM punctual_job))
    AND (SELECT total(running) FROM punctual_queue)
        = (SELECT count(*) FROM punctual_lease WHERE id IN (SELECT id FROM punctual_job))
    AND (SELECT count(*) FROM punctual_job)
        <= (SELECT total(waiting + retrying + running + done + dead + cancelled) FROM punctual_queue)
    AND NOT EXISTS (SELECT 1 FROM punctual_job WHERE q NOT IN (SELECT qid FROM punctual_queue));

-- name: wait
-- Puts each job without an end or a lease into the timeline.
INSERT OR IGNORE INTO punctual_due (q, pri, run_at, id)
SELECT q, pri, run_at, id FROM punctual_job
WHERE typeof(q) = 'integer' AND typeof(pri) = 'integer' AND typeof(run_at) = 'integer'
    AND id NOT IN (SELECT id FROM punctual_lease UNION ALL SELECT id FROM punctual_ended);

-- name: expire
-- Puts the expiry of each waiting job into its table, before jobs with a group leave the timeline.
INSERT OR IGNORE INTO punctual_expiry (q, expires_at, id)
SELECT j.q, j.expires_at, j.id FROM punctual_job j JOIN punctual_due d USING (q, pri, run_at, id)
WHERE typeof(j.expires_at) = 'integer';
