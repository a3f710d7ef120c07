-- live: returns a job that waits or runs in a shard, of a group, or else of a concurrency key.
-- KEYS: common.
-- ARGV: now, name, an id, key16, gid16 or ''.
-- Answers: the job's id; '' if there is none, or if the shard has the job with the id itself.
-- Cost: O(log N).
local q, gid = number_of(ARGV[2]), ARGV[5]
if not q or call('HEXISTS', $RECORDS, ARGV[3]) == 1 then return '' end
return rules().first_live(q, ARGV[4], gid ~= '' and gid) or ''
