-- lasts: how long a window or the holding of a lock lasts, in ms; NULL if an older version made the row. short: its end while the clock is
-- behind its beginning; NULL if nobody needed it then.
ALTER TABLE punctual_unique ADD COLUMN lasts INTEGER;
ALTER TABLE punctual_unique ADD COLUMN short INTEGER;
ALTER TABLE punctual_lock ADD COLUMN lasts INTEGER;
ALTER TABLE punctual_lock ADD COLUMN short INTEGER;
