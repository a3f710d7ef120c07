-- How long windows and locks last, in ms, beside their ends: if the clock goes back, they end at most that long from then. NULL: an
-- older version made it.
ALTER TABLE punctual_unique ADD COLUMN lasts INTEGER;
ALTER TABLE punctual_lock ADD COLUMN lasts INTEGER;
