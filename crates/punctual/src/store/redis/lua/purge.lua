-- purge: deletes waiting jobs, first those that would run first, until it has read a mebibyte of records. KEYS: common. ARGV:
-- now, name, limit. Answers: deleted, more (0 or 1); nothing for an unknown queue. Cost: O(limit log N).
drains()
local q, limit = call('HGET', Q, ARGV[2]), tonumber(ARGV[3])
if not q then return {} end
local deleted = 0
for level = 0, LEVELS - 1 do
    local from, to = '[' .. q .. char(level), '(' .. q .. char(level) .. '\255'
    local left = shard.bytes < BYTES_MAX and limit - deleted or 0
    local members = {}
    if 0 < left and queue(q).lifo then
        members = call('ZREVRANGEBYLEX', T, to, from, 'LIMIT', 0, left)
    elseif 0 < left then
        members = call('ZRANGEBYLEX', T, from, to, 'LIMIT', 0, left)
    end
    for _, member in ipairs(members) do
        local job = late().load(sub(member, 11, 26))
        if job and job.state == WAITING then
            late().delete(job)
        else
            call('ZREM', T, member)
        end
        deleted = deleted + 1
        if BYTES_MAX <= shard.bytes then break end
    end
end
put()
-- What is of no level is not ours to delete.
return {deleted, call('ZLEXCOUNT', T, '[' .. q, '(' .. q .. char(LEVELS)) == 0 and 0 or 1}
