-- audit: a slice of a consistency check, some `limit` entries of one kind, or a mebibyte of records. KEYS: common. ARGV: now,
-- what (ids, t, l, e), where to go on or '', limit, 1 to repair. Answers: where to go on or '', looked at, then per finding:
-- id, name of the queue as a chunk or '', what, detail.
-- A record in no place becomes dead, reason `orphan`; in two places running wins over waiting, waiting over ended; an entry
-- without a record is dropped. Records are never deleted. Cost: O(limit log N).
drains()
local SCAN = 16 -- records read at once, before their size is known
local what, from, limit, repair = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local answer = {'', 0}
local function found(id, q, kind, detail)
    local n = #answer
    local name = q and call('HEXISTS', I, q) == 1 and late().name_of(q) or ''
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = id, name, kind, detail
end
local function stands(key, member) return call('ZSCORE', key, member) end

-- A record that can't be read is dead, if its past says so.
local function audit_unsound(id)
    local rec, x = call('HGET', J, id), call('HGET', X, id)
    local job = {id = id}
    if not rec or pcall(late().past, job, x) and job.ended then return end
    found(id, nil, 'corrupt', 'can not be read')
    local q = #rec >= 5 and sub(rec, 3, 5)
    -- Of which queue it is it may not say any more: then it is left to people.
    if repair and q and call('HEXISTS', I, q) == 1 then
        call('HDEL', R, id)
        late().bury(q, id)
    end
end
-- Whether a record stands somewhere.
local function audit_record(id)
    local job = late().load(id)
    if not job then return audit_unsound(id) end
    if job.run then
        if not stands(L, late().lease_member(job)) then
            found(id, job.q, 'orphan', 'running, but its lease has no time')
            if repair then call('ZADD', L, 0, late().lease_member(job)) end
        end
    elseif not stands(job.ended and E or T, job.ended and late().ended_member(job) or late().waiting_member(job)) then
        found(id, job.q, 'orphan', 'stands nowhere')
        if repair then
            if job.ended then
                late().tally(job.q, 'b', job.bytes)
            elseif 1 < job.attempt then
                late().tally(job.q, 'r', -1)
            end
            late().finish(job, DEAD, 'orphan')
        end
    end
end
-- Whether what stands somewhere belongs there.
local function audit_member(key, member)
    local id = what == 'l' and sub(member, 10) or sub(member, 11, 26)
    local job, belongs = late().load(id), nil
    if job and what == 't' then
        belongs = job.state == WAITING and late().waiting_member(job) == member
    elseif job and what == 'l' then
        belongs = job.run and late().lease_member(job) == member
    elseif what == 'e' and not job and call('HEXISTS', J, id) == 1 then
        belongs = true -- of a record that can't be read
    elseif job then
        belongs = job.ended and not job.run and late().ended_member(job) == member
    end
    if not belongs then
        found(id, sub(member, 1, 3), job and 'two_places' or 'no_record',
            job and 'stands in a second place' or 'stands somewhere, without a record')
        if repair then call('ZREM', key, member) end
    end
end

if what == 'ids' then
    local bytes, cursor = 0, from == '' and '0' or from
    repeat
        local scan = call('HSCAN', J, cursor, 'COUNT', SCAN)
        cursor = scan[1]
        for i = 1, #scan[2], 2 do
            audit_record(scan[2][i])
            bytes, answer[2] = bytes + #scan[2][i + 1], answer[2] + 1
        end
    until cursor == '0' or limit / 2 <= answer[2] or BYTES_MAX <= bytes
    if cursor ~= '0' then answer[1] = cursor end
else
    local key = ({t = T, l = L, e = E})[what]
    local page = call('ZRANGEBYLEX', key, from == '' and '-' or '(' .. from, '(\255', 'LIMIT', 0, limit)
    for _, member in ipairs(page) do audit_member(key, member) end
    if #page == limit then answer[1] = page[#page] end
    answer[2] = #page
end
put()
return answer
