-- Returns the version for a change of a document. `row`: of the document before, if there is one. If the last version is gone or damaged,
-- versions go on at the µs of the clock: no store has counted that far. Without any document they begin at 1.
-- Cost: one command.
local function next_version(docs, row)
    local version = redis.pcall('HINCRBY', $STATE, 'docs', 1)
    local is_sound = type(version) == 'number' and 0 < version and not (row and 7 <= #row and version <= unp('>I7', row))
    if is_sound and (1 < version or call('HLEN', docs) == 0) then return version end
    version = max(now * 1000, row and 7 <= #row and unp('>I7', row) + 1 or 0)
    call('HSET', $STATE, 'docs', string.format('%.0f', version))
    return version
end
