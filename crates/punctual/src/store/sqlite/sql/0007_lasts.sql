-- How long windows and locks last, in ms, beside their ends, and their ends while the clock is behind their beginning, since somebody needed
-- them then. NULL: an older version made it; nobody did.
ALTER TABLE punctual_unique ADD COLUMN lasts INTEGER;
ALTER TABLE punctual_unique ADD COLUMN short INTEGER;
ALTER TABLE punctual_lock ADD COLUMN lasts INTEGER;
ALTER TABLE punctual_lock ADD COLUMN short INTEGER;
