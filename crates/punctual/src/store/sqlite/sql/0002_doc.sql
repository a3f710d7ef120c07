-- Documents: small values with versions. One table with the values in it, since whoever looks for a document reads it.

CREATE TABLE punctual_doc (key TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL);

-- Beside the row of state: how many documents there are, and the version given last.
CREATE TABLE punctual_docs (one INTEGER PRIMARY KEY CHECK (one = 1), count INTEGER NOT NULL, version INTEGER NOT NULL);
INSERT INTO punctual_docs VALUES (1, 0, 0);
