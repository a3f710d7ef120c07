-- The keys, and the words of all scripts. Read → decide → write.
--
-- KEYS, all of one shard, hence of one slot (an id stands for 16 bytes, q for a queue's number of 3 bytes; whole numbers
-- are big-endian, so that members sort as they should):
--   1 j  HASH  id → record                        what was asked for; see head() in rules.lua
--   2 x  HASH  id → past                          what runs, moves and the end left behind; only where there is something
--   3 t  ZSET  q level run_at6 id past1           waiting jobs in the order in which they run (S6): the timeline
--              q 32 gid16 level run_at6 id past1  those of a group, which gid16 stands for
--              q 16 key16 level run_at6 id past1 most4 gid16   those that wait for their turn among the jobs of their
--                                                 concurrency key (S15); most: how many of the key may run as it starts, itself
--                                                 included; no gid16 without a group
--   4 o  ZSET  q expires6 id                      waiting jobs that may expire
--   5 r  HASH  id → run                           running jobs: their leases; see run_of() in rules.lua
--   6 l  ZSET  q until6 id                        their leases by time
--   7 e  ZSET  q state1 ended6 id bytes4          ended jobs as far as they are kept
--   8 u  HASH  digest16 → id until6               unique keys that are held; until: of a window
--   9 v  ZSET  until6 digest16                    windows by their end
--  10 k  ZSET  q ended6 id                        remembered ids by the end of their jobs
--  11 m  HASH  q id → ended6                      the same, by id
--  12 p  HASH  instance8 verb1 → number8 ms6 answer   the last call of each instance (S3)
--  13 a  ZSET  instance8 verb1 @ ms               the same, by a time not after their last call
--  14 s  HASH  'turn' → seen7 grace7 fence7 wide7 epoch4 format2   see read_turn() in base.lua; the format stands at this place
--              in every format
--              'left' → when a script last left rings to its caller, in ms
--              'layout' → over how many shards the store is spread; of other shards than 0 a copy, see copies.rs
--              'pins' → which queues are pinned, or were; the same
--              'identity' → which store it is, in 16 hexadecimal digits; of other shards than 0 a copy
--              'docs' → the version that a document was given last; of shard 0 only
--              'search' → where the search for misplaced jobs is; see misplaced.lua
--  15 q  HASH  name → q
--  16 i  HASH  q → settings, q 'w' → due7 watch7 spare7, and closed7 arrival7 part4, and time7 own7 let7, where one of them is
--              not 0: see queue() in base.lua; q 'g' gid16 → what one group may have, q 'G' → gid16 of each such group
--  17 n  ZSET  name                               queues by name; NUL name: those that hold nothing, see rest() in rules.lua
--  18 c  HASH  q what1 → number                   counters: 'b' bytes of live jobs, 'r' waiting jobs in a later attempt,
--                                                 a state's number: bytes of jobs kept in it
--  19 g  ZSET  q key16 id                         running jobs by their concurrency key; q gid16 id: by their group
--  20 h  ZSET  q place1 at7 gid16                 groups by where they stand, see regroup() in rules.lua
--              q 'd' run_at7 id                   waiting jobs of all groups by time, without those that are parked
--              q 'k' key16 id                     waiting and running jobs of a concurrency key that have no group
--  21 y  HASH  q gid16 → group                    what is remembered of a group; see group_of() in rules.lua
--  22 …  ZSET  'r', 's', 't', 'u', each @ ms      doorbells of the queues named in the call, in their order; see put() in
--                                                 notifications.lua; 't' ms, 'u' ms: those that came back
-- Of doc.lua and audit.lua stands there instead, of shard 0 (others have none):
--  22 d  HASH  key → version7 value               documents
--  23 f  ZSET  key                                the same by their keys
-- Of the tools, in shard 0, whose scripts name none of the others (see tool.lua):
--     gcra:NAME NUL KEY  STRING  a key of a rate limiter that keeps a rate; see gcra.lua
--     log:NAME NUL KEY   STRING  one of those that keep a log; see log.lua
--     lk  HASH  name → holding                   locks; see lock.lua
--     lz  ZSET  name @ ms                        the same by the ends of their leases
--     board:NAME …  ZSET  member @ score          a leaderboard, and what it is the sum of; see board.lua
-- ARGV[1]: now in Unix ms, or '' for the server's clock (S14).
-- In t, o, l, e, v, k, n, g, h and f all scores are 0: membership in t, r and e IS the state, order is that of the bytes.
local RECORDS, HISTORIES, TIMELINE, EXPIRIES, RUNS, LEASES, ENDED_JOBS, UNIQUE_KEYS, WINDOWS, REMEMBERED_BY_END,
    REMEMBERED, CALLS, CALLS_BY_TIME, STATE, QUEUES, SETTINGS, NAMES, COUNTERS, RUNNING_KEYS, GROUPS_BY_PLACE, GROUPS =
    unpack(KEYS, 1, 21)
local BELLS = $BELLS -- where the doorbells begin
local call, pack, unp = redis.call, struct.pack, struct.unpack
local sub, char, byte, concat, min, max = string.sub, string.char, string.byte, table.concat, math.min, math.max
local WAITING, DONE, CANCELLED, DEAD, RUNNING = $WAITING, $DONE, $CANCELLED, $DEAD, $RUNNING
local CAPPED, KEEPS_NO_DONE, LIMITED, GROUPS_LIMITED = 4, 8, 64, 128 -- flags of queues, see queue() in base.lua
local LEVELS = $LEVELS
local PARKED, GROUPED = 16, 32 -- stand where a level does: of jobs that wait for their turn, and of those of a group
local DERIVED = $DERIVED -- the version of derived ids
local FORMAT = $FORMAT -- see scripts.rs
local END = $INSTANT_MAX_MS -- the last instant
local LAST = string.rep('\255', 65) -- behind all members of t and l, see put_call() in base.lua
local BEHIND = string.rep('\255', 17) -- behind all that follows a prefix, be it an id or a digest, whose bytes may be any
local NEVER = $NEVER -- of what is not to come
local AT_REST = 2 ^ 53 - 1 -- when upkeep is due of a queue that holds nothing
local OPEN = $OPEN -- stands for what nobody chose: the default of the version that reads it
-- A name after a $ is a constant of the Rust code, see constants() in scripts.rs. Times are in ms.
local POISON_LIMIT, CRASHES_MAX = $POISON_LIMIT, $CRASHES_MAX
local CANDIDATES_EXTRA, GROUPS_EXTRA, GROUP_TURNS_MAX = $CANDIDATES_EXTRA, $GROUPS_EXTRA, $GROUP_TURNS_MAX
local HEARTBEAT, JUMP = $HEARTBEAT_DEFAULT, $LEASE_DEFAULT + $HEARTBEAT_DEFAULT
local CALL_MEMORY, BYTES_MAX, SPARE = $CALL_MEMORY, $BATCH_BYTES_MAX, $SPARE
