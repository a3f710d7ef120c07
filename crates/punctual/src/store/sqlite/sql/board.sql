-- Leaderboards; see the model's toolkit/board.rs.
-- Tables: punctual_board, punctual_score, punctual_part.
-- Cost: a few seeks per bucket; a rank counts the index entries above it.

-- name: board
SELECT bid, newest, size FROM punctual_board WHERE name = ?1 AND bucket = ?2 AND buckets = ?3;

-- name: new_board
INSERT INTO punctual_board (name, bucket, buckets, newest, size) VALUES (?1, ?2, ?3, 0, 0) RETURNING bid;

-- name: put_board
UPDATE punctual_board SET newest = ?2, size = ?3, ends = ?4 WHERE bid = ?1;

-- name: put_size
UPDATE punctual_board SET size = ?2 WHERE bid = ?1;

-- name: low
SELECT low FROM punctual_score WHERE bid = ?1 AND member = ?2;

-- name: put_low
INSERT INTO punctual_score (bid, member, low) VALUES (?1, ?2, ?3) ON CONFLICT (bid, member) DO UPDATE SET low = ?3;

-- name: remove_low
DELETE FROM punctual_score WHERE bid = ?1 AND member = ?2;

-- name: part
SELECT score FROM punctual_part WHERE bid = ?1 AND bucket = ?2 AND member = ?3;

-- name: put_part
INSERT INTO punctual_part (bid, bucket, member, score) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (bid, bucket, member) DO UPDATE SET score = ?4;

-- name: remove_part
DELETE FROM punctual_part WHERE bid = ?1 AND bucket = ?2 AND member = ?3;

-- name: cold_before
SELECT bucket, member, score FROM punctual_part WHERE bid = ?1 AND bucket < ?2 LIMIT ?3;

-- name: cold_behind
SELECT bucket, member, score FROM punctual_part WHERE bid = ?1 AND ?2 < bucket LIMIT ?3;

-- name: lowest
SELECT member FROM punctual_score WHERE bid = ?1 ORDER BY low DESC, member DESC LIMIT ?2;

-- name: above
SELECT count(*) FROM punctual_score WHERE bid = ?1 AND (low, member) < (?2, ?3);

-- name: from
SELECT member, low FROM punctual_score WHERE bid = ?1 AND (?2, ?3) <= (low, member) ORDER BY low, member LIMIT ?4;

-- name: before
SELECT member, low FROM punctual_score WHERE bid = ?1 AND (low, member) < (?2, ?3) ORDER BY low DESC, member DESC LIMIT ?4;

-- name: top
SELECT member, low FROM punctual_score WHERE bid = ?1 ORDER BY low, member LIMIT ?2;

-- name: past
SELECT bid FROM punctual_board WHERE ends <= ?1 LIMIT 1;

-- name: size
SELECT size FROM punctual_board WHERE bid = ?1;

-- name: forget_scores
-- For a board without parts. There are none, unless the file was damaged.
DELETE FROM punctual_score WHERE bid = ?1;

-- name: forget_board
DELETE FROM punctual_board WHERE bid = ?1;
