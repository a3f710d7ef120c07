-- A step of settle_one(): the answer of a reserve.
-- When a call is needed for these leases: see watch_of() in ../../base.lua.
if now < due and till < $NEVER then
    local own, ids, rows = run and sub(run, 9, 17) .. id, {}, {}
    others[$WATCHED_MAX + 1] = nil
    if own and #others == $WATCHED_MAX then
        if own < others[#others] then others[#others] = nil else own = nil end
    end
    for i, other in ipairs(others) do ids[i] = sub(other, 10) end
    if 0 < #ids then rows = call('HMGET', $RUNS, unpack(ids)) end
    till = own and now + math.floor(2 * lasts / 5) or $NEVER
    for i = 1, #ids do
        local length = rows[i] and 32 <= #rows[i] and unp('>I4', rows[i], 29) or 0
        till = math.min(till, over_at(silences, unp('>I6', others[i], 4), length), now + math.floor(2 * length / 5))
    end
end
-- Which process wakes for the queue next.
local notification, held, is_hinted = KEYS[$NOTIFICATIONS], ARGV[from + 9], now < spare or has_groups
if now < spare then spare = 0 end
local at = math.min(due, till)
local is_news, is_held, is_mine = now < at and at < $NEVER and (watch <= now or at < watch), false, held == '-'
if now < at and now < watch and held ~= '-' then
    for j = 1, #held, 7 do is_held = is_held or unp('>I7', held, j) == watch end
end
if at <= now then
    if due <= now then
        spare, is_hinted = now + $SPARE, true
        call('ZADD', notification, 'LT', 0, 'r', text(spare), 's')
    end
elseif held ~= '-' and 0 < wanted and (is_held or is_news) and (due <= till or is_held and watch == at) then
    is_mine = true
    if watch ~= at then
        watch, is_hinted = at, true
        call('ZADD', notification, text(at + $SPARE), 'u')
    end
elseif is_news or is_held or member and held == '-' and due < $NEVER then
    watch, is_hinted = at, true
    call('ZADD', notification, text(at), 't', text(at + $SPARE), 'u')
end
if is_hinted then
    local rest = has_groups and sub(row, 22, 39) .. pack('>I7I7I7', last_tag, ungrouped, now + 1) or sub(row, 22)
    call('HSET', $SETTINGS, q .. 'w', pack('>I7I7I7', upkeep, watch, spare) .. rest)
end
local next, wakes = '', pack('>I7B', $NEVER, 0)
if at < $NEVER then next, wakes = text(at), pack('>I7B', at, is_mine and 1 or 0) end
local answer = {text(now), into, epoch, ''}
local filled = 4
if 2 < from then
    answer[5], filled = acks == 1 and char($DONE) or '', 5
end
answer[filled + 1], answer[filled + 2], answer[filled + 3] = '', next, wakes
if member then answer[filled + 4], answer[filled + 5], answer[filled + 6], answer[filled + 7] = id, run, rec, payload end
return answer
