-- doc: one step on the documents of the store.
-- KEYS: common, of shard 0, then d and f.
-- ARGV: now, then 'get' key | 'put' key only value | 'remove' key only | 'list' prefix from limit. only: the version
--   that the document must have, 0 for none, '' for any; from: where to begin, as ZRANGEBYLEX takes it.
-- Answers: 'is' or 'conflict', with key and version7 value if there is one; 'full'; 'page' or 'more' with any number of
--   them.
-- A list ends after a mebibyte of values, and has one document at least. Cost: O(log N), per document of a list.
local DOCS, DOCS_BY_KEY = KEYS[$NOTIFICATIONS], KEYS[$NOTIFICATIONS + 1]
local DOCS_MAX = $DOCS_MAX
local what, key, only = ARGV[2], ARGV[3], ARGV[4]
if what == 'list' then
    local limit = tonumber(ARGV[5])
    local names = call('ZRANGEBYLEX', DOCS_BY_KEY, ARGV[4], '(' .. key .. '\255', 'LIMIT', 0, limit + 1)
    local answer, bytes = {'page'}, 0
    for i, name in ipairs(names) do
        local n, row = #answer, call('HGET', DOCS, name)
        if row then bytes = bytes + #row - 7 end
        if limit < i or 1 < n and $BATCH_BYTES_MAX < bytes then
            answer[1] = 'more'
            break
        end
        -- A name without a document is for an audit to repair.
        if row then answer[n + 1], answer[n + 2] = name, row end
    end
    return answer
end
local row = call('HGET', DOCS, key)
if what == 'get' then return {'is', key, row or nil} end
local value = what == 'put' and ARGV[5] or false
if (row and sub(row, 8)) == value then return {'is', key, row or nil} end
if only ~= '' and tonumber(only) ~= (row and unp('>I7', row) or 0) then return {'conflict', key, row or nil} end
if not value then
    drains()
    call('ZREM', DOCS_BY_KEY, key)
    call('HDEL', DOCS, key)
    return {'is', key}
end
if not row and DOCS_MAX <= call('HLEN', DOCS) then return {'full'} end
if shard.is_new then put_shard() end
row = pack('>I7', next_version(DOCS, row)) .. value
call('HSET', DOCS, key, row)
call('ZADD', DOCS_BY_KEY, '0', key)
return {'is', key, row}
