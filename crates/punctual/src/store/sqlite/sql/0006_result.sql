-- What runs tell of themselves, and what they give.

-- JSON of how far they are and of their last lines.
ALTER TABLE punctual_past ADD COLUMN notes TEXT;
-- Of a done job; `result_type` is its media type, NULL for JSON.
ALTER TABLE punctual_past ADD COLUMN result BLOB;
ALTER TABLE punctual_past ADD COLUMN result_type TEXT;
-- 1 while somebody waits for the end.
ALTER TABLE punctual_past ADD COLUMN watched INTEGER;
