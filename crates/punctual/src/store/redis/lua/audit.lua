-- audit: a slice of a consistency check, at most `limit` entries of one kind. KEYS: common. ARGV: now, what (ids, t, l, e),
-- where to go on or '', limit, 1 to repair. Answers: where to go on or '', looked at, then per finding: id, name of the queue
-- as a chunk or '', what, detail.
-- A record in no place becomes dead, reason `orphan`; in two places running wins over waiting, waiting over ended; an entry
-- without a record is dropped. Records are never deleted. Cost: O(limit log N).
local what, from, limit, repair = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local answer = {'', 0}
local function found(id, q, kind, detail)
    local n = #answer
    local name = q and call('HEXISTS', I, q) == 1 and queue(q).name or ''
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = id, name, kind, detail
end
local function stands(key, member) return call('ZSCORE', key, member) end
local keys = {ids = D, t = T, l = L, e = E}
local page = call('ZRANGEBYLEX', keys[what], from == '' and '-' or '(' .. from, '+', 'LIMIT', 0, limit)
for _, member in ipairs(page) do
    local id = what == 'ids' and member or what == 'l' and sub(member, 10) or sub(member, 11, 26)
    local job = load(id)
    if what == 'ids' then
        if not job then
            found(id, nil, 'no_record', 'listed, without a record')
            if repair then call('ZREM', D, id) end
        elseif job.run then
            if not stands(L, job.q .. at6(job.run.till) .. id) then
                found(id, job.q, 'orphan', 'running, but its lease has no time')
                if repair then call('ZADD', L, 0, job.q .. at6(job.run.till) .. id) end
            end
        elseif not stands(job.ended and E or T, job.ended and ended_member(job) or waiting_member(job)) then
            found(id, job.q, 'orphan', 'stands nowhere')
            if repair then
                if job.ended then
                    tally(job.q, 'b', job.bytes)
                elseif 1 < job.attempt then
                    tally(job.q, 'r', -1)
                end
                finish(job, DEAD, 'orphan')
            end
        end
    else
        local belongs
        if job and what == 't' then
            belongs = job.state == WAITING and waiting_member(job) == member
        elseif job and what == 'l' then
            belongs = job.run and job.q .. at6(job.run.till) .. id == member
        elseif job then
            belongs = job.ended and not job.run and ended_member(job) == member
        end
        if not belongs then
            found(id, sub(member, 1, 3), job and 'two_places' or 'no_record',
                job and 'stands in a second place' or 'stands somewhere, without a record')
            if repair then call('ZREM', keys[what], member) end
        end
    end
end
if #page == limit then answer[1] = page[#page] end
answer[2] = #page
put_tallies()
return answer
