-- A step of settle_one(): the record of the job, and the row of its run.
if due <= now and 1 < wanted then return end
if member then
    local id_at = gid and 28 or 11
    id = sub(member, id_at, id_at + 15)
    rec = call('HGET', $RECORDS, id)
    if #member ~= id_at + 16 or byte(member, id_at + 16) ~= 0 or not rec or #rec < 26 or acks == 1 and id == acked then return end
    -- Allowed: all but an expiry (2).
    local flags, scope, _, skip = unp('>BBc3I3', rec)
    if 2 <= flags % 4 or #rec < skip or (64 <= flags % 128) ~= (gid ~= nil) then return end
    local bytes, at, own, held, digests = #rec - skip, 15 + flags % 2 * 6, false, 0, ''
    if 128 <= flags then
        if bytes ~= 0 or skip < at + 7 then return end
        bytes, at = unp('>I4', rec, at)
        payload = call('HGET', $PAYLOADS, id) or ''
    end
    if 4 <= flags % 8 then own, at = unp('>I4', rec, at) end
    if 8 <= flags % 16 then at = at + 2 end
    if 16 <= flags % 32 then
        if 16 <= scope or skip < at + 22 then return end
        held, digests, at = 4, sub(rec, at, at + 15), at + 23
    end
    if 32 <= flags % 64 then
        if skip < at + 19 then return end
        local most
        concurrency_key, most, at = unp('>c16I4', rec, at)
        local of = q .. concurrency_key
        if concurrency_key ~= acked_key then
            if is_any == nil then is_any = is_awaited(q, '') end
            if is_any and is_awaited(q, concurrency_key) then return end
        elseif call('ZSCORE', $RUNNING_KEYS, of .. acked) then
            most = most + 1
        end
        if most <= call('ZLEXCOUNT', $RUNNING_KEYS, '[' .. of, '(' .. of .. string.rep('\255', 17)) then return end
        held, digests = held + 8, digests .. concurrency_key
    end
    if gid then
        if sub(rec, at, at + 15) ~= gid or skip < at + 15 then return end
        held, digests = held + 16, digests .. gid
    end
    local asked = tonumber(ARGV[from + 3])
    if lasts == 0 then lasts = $LEASE_DEFAULT end
    lasts = own or 0 < asked and asked or lasts
    fence = math.max(fence, now * 1000) + 1
    local ends = math.min(now + lasts, $INSTANT_MAX_MS)
    till = math.min(till, ends)
    run = pack('>I8c3I6BI4I6I4', fence, q, ends, held, bytes, now, lasts) .. digests .. ARGV[from + 4]
end
