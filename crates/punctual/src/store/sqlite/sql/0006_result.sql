-- Notes and results of runs.

-- JSON of the progress and the last log lines.
ALTER TABLE punctual_past ADD COLUMN notes TEXT;
-- The result of a done job. `result_type` is its media type, NULL for JSON.
ALTER TABLE punctual_past ADD COLUMN result BLOB;
ALTER TABLE punctual_past ADD COLUMN result_type TEXT;
-- 1 while a caller waits for the end.
ALTER TABLE punctual_past ADD COLUMN watched INTEGER;
