-- Documents: small values with versions. The values are in the table, because every look-up reads them.

CREATE TABLE punctual_doc (key TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL);

-- One row: the number of documents, and the last version.
CREATE TABLE punctual_docs (one INTEGER PRIMARY KEY CHECK (one = 1), count INTEGER NOT NULL, version INTEGER NOT NULL);
INSERT INTO punctual_docs VALUES (1, 0, 0);
