-- live: which job of a group, else of a concurrency key, waits or runs in a shard.
-- KEYS: common. ARGV: now, name, an id, key16, gid16 or ''. Answers: its id; '' where there is none, or the shard has the job of the id
-- itself. Cost: O(log N).
local q, gid = call('HGET', QUEUES, ARGV[2]), ARGV[5]
if not q or call('HEXISTS', RECORDS, ARGV[3]) == 1 then return '' end
return rules().first_live(q, ARGV[4], gid ~= '' and gid) or ''
