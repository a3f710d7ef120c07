-- The names of keys, and the words that all scripts share. Each script reads, then decides, then writes.
--
-- KEYS are all of one shard, so they are in one slot. In rows and members, an id has 16 bytes, and q is the number of a
-- queue in 3 bytes. Whole numbers are big-endian, so that members sort as they should. A digit after a name is its
-- length in bytes. The word in capitals stands for the key in the scripts, after a $:
--   1 j  HASH  RECORDS            id → record: what was enqueued, with a short payload; see head() in state/codec.lua
--   2 x  HASH  HISTORIES          id → history: what runs, changes and the end added; only if there is something
--   3 t  ZSET  TIMELINE           waiting jobs in the order in which they run (S6), and the blocked ones:
--               q level run_at6 id past1            ungrouped jobs
--               q 32 gid16 level run_at6 id past1   jobs of a group; gid16 is the digest of its name
--               q 16 key16 level run_at6 id past1 most4 gid16   jobs that are blocked by their concurrency key (S15);
--                       most: how many of the key can run when it starts, including itself; no gid16 if ungrouped
--   4 o  ZSET  EXPIRIES           q expires6 id: waiting jobs that can expire
--   5 r  HASH  RUNS               id → run: running jobs with their leases; see run_of() in state/codec.lua
--   6 l  ZSET  LEASES             q until6 id: their leases by time
--   7 e  ZSET  ENDED_JOBS         q state1 ended6 id bytes4: ended jobs that are kept
--   8 u  HASH  UNIQUE_KEYS        digest16 → id until6: unique keys that are held; until: the end of a window, else 0
--   9 v  ZSET  WINDOWS            until6 digest16: windows by their end
--  10 k  ZSET  REMEMBERED_BY_END  q ended6 id: remembered ids by the end of their jobs
--  11 m  HASH  REMEMBERED         q id → ended6: the same, by id
--  12 p  HASH  CALLS              instance8 verb1 → number8 ms6 answer: the last call of each instance (S3)
--  13 a  ZSET  CALLS_BY_TIME      instance8 verb1 @ ms: the same, by a time that is not after the last call
--  14 s  HASH  STATE              the state of the shard:
--               'turn' → seen7 grace7 fence7 wide7 epoch4 format2: see read_shard() in base.lua; the format is at this
--                        position in every format
--               'left' → when a script last left notifications to its caller, in ms
--               'layout' → how many shards the store has; in shards other than 0 a copy, see copies.rs
--               'pins' → which queues are pinned, or were; the same
--               'identity' → which store it is, in 16 hexadecimal digits; in shards other than 0 a copy
--               'docs' → the last version that a document got; only in shard 0
--               'search' → the position of the search for misplaced jobs; see sharded/misplaced.lua
--  15 q  HASH  QUEUES             name → q
--  16 i  HASH  SETTINGS           of queues and groups:
--               q → settings that scripts read
--               q 'j' → all settings as JSON, which only callers read
--               q 'w' → due7 watch7 spare7, then closed7 arrival7 part4, then time7 own7 let7; the later parts only if one
--                       of their numbers is not 0; see queue() in base.lua
--               q 'g' gid16 → weight and limits of one group
--               q 'G' → gid16 of each group that has such a row
--  17 n  ZSET  NAMES              name: queues by name; NUL name: those that hold nothing, see rest() in state/queues.lua
--  18 c  HASH  COUNTERS           q what1 → number: 'b' bytes of live jobs, 'r' waiting jobs in a later attempt, the number of a
--                                 state: bytes of jobs kept in it, 'e' how many acks need no sweep: see grant() in state/upkeep.lua
--  19 g  ZSET  RUNNING_KEYS       q key16 id: running jobs by their concurrency key; q gid16 id: by their group
--  20 h  ZSET  GROUPS_BY_PLACE    for groups and concurrency keys:
--               q place1 at7 gid16   groups by their place, see regroup() in state/groups.lua
--               q 'd' run_at7 id     waiting jobs of all groups by time, without the blocked ones
--               q 'k' key16 id       waiting and running ungrouped jobs of a concurrency key
--  21 y  HASH  GROUPS             q gid16 → group: the state of a group; see group_of() in state/groups.lua
--  22 b  HASH  PAYLOADS           id → payload: the longer ones, of more than $WITHIN_RECORD_MAX bytes
--  23 …  ZSET  NOTIFICATIONS      from this position on, the notification keys of the queues named in the call, in their order:
--               'r', 's', 't', 'u', each @ ms: see put() in notifications.lua; 't' ms, 'u' ms: those that came back
-- doc.lua and audit.lua have these keys there instead, in shard 0 (other shards have none):
--  23 d  HASH  DOCS               key → version7 value: documents
--  24 f  ZSET  DOCS_BY_KEY        key: the same by their keys
-- The scripts of tools name none of the keys above (see toolkit/tool.lua). They have keys of their own in shard 0:
--     gcra:NAME NUL KEY  STRING  a key of a rate limiter that keeps a rate; see toolkit/gcra.lua
--     log:NAME NUL KEY   STRING  a key of a rate limiter that keeps a log; see toolkit/log.lua
--     lk  HASH  name → holding                   locks; see toolkit/lock.lua
--     lz  ZSET  name @ ms                        the same by the ends of their leases
--     board:NAME …  ZSET  member @ score          a leaderboard, and the buckets that it is the sum of; see toolkit/board.lua
-- ARGV[1]: now in Unix ms, or '' for the server's clock (S14).
-- In t, o, l, e, v, k, n, g, h and f all scores are 0. Membership in t, r and e IS the state. The order is that of the
-- bytes.
local NOTIFICATIONS = $NOTIFICATIONS -- the position of the first notification key
local call, pack, unp = redis.call, struct.pack, struct.unpack
local sub, char, byte, concat, min, max = string.sub, string.char, string.byte, table.concat, math.min, math.max
local WAITING, DONE, CANCELLED, DEAD, RUNNING = $WAITING, $DONE, $CANCELLED, $DEAD, $RUNNING
local CAPPED, KEEPS_NO_DONE, LIMITED, GROUPS_LIMITED = 4, 8, 64, 128 -- flags of queues, see queue() in base.lua
local LEVELS = $LEVELS
-- These are where a level would be: the mark of blocked jobs, and that of jobs of a group.
local BLOCKED, GROUPED = 16, 32
local DERIVED = $DERIVED -- the version of derived ids
local FORMAT = $FORMAT -- see scripts.rs
local END = $INSTANT_MAX_MS -- the last instant
local LAST = string.rep('\255', 65) -- after all members of t and l, see put_call() in base.lua
-- Sorts after everything that follows a prefix, for example an id or a digest, whose bytes can have any value.
local BEHIND = string.rep('\255', 17)
local NEVER = $NEVER -- the time of what will not come
local AT_REST = $AT_REST -- when upkeep is due for a queue that holds nothing
-- Stands for a setting that nobody chose. Each reader uses the default of its own version.
local OPEN = $OPEN
-- A name after a $ is a constant of the Rust code; see constants() in scripts.rs. Times are in ms.
local POISON_LIMIT, EXPIRED_LEASES_MAX = $POISON_LIMIT, $EXPIRED_LEASES_MAX
local CANDIDATES_EXTRA, GROUPS_EXTRA, GROUP_SERVICES_MAX = $CANDIDATES_EXTRA, $GROUPS_EXTRA, $GROUP_SERVICES_MAX
local JUMP_PAUSE, JUMP = $JUMP_PAUSE, $LEASE_DEFAULT + $JUMP_PAUSE
local CALL_MEMORY, BYTES_MAX, SPARE = $CALL_MEMORY, $BATCH_BYTES_MAX, $SPARE
