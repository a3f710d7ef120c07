//! The scripts, assembled from their parts.

pub(crate) mod bytes;
pub(crate) mod reply;
pub(crate) mod script;

use std::{collections::HashMap, sync::LazyLock};

use self::script::Script;
use crate::{
    core::{
        fair::STRIDE,
        id::DERIVED_VERSION,
        job::{Priority, State},
        limits, silence, steady,
        time::ceil_ms,
    },
    store::{
        redis::{
            notify::SPARE,
            state::{
                codec::{UNTIL_START, WINDOW, code},
                settings::OPEN,
            },
            verbs::reserve::NEVER,
        },
        toolkit::{TOOL_FORGET_MAX, TOOL_MEMORY},
        version_defaults::{Defaults, defaults},
    },
};

/// The keys that every script names, in the order of `lua/key_names.lua`.
pub(super) const COMMON_KEYS: [&str; 22] = [
    "j", "x", "t", "o", "r", "l", "e", "u", "v", "k", "m", "p", "a", "s", "q", "i", "n", "c", "g", "h", "y",
    "b",
];

/// The keys of the documents, only in shard 0, after the common keys.
pub(super) const DOC_KEYS: [&str; 2] = ["d", "f"];

/// The keys of the locks, only in shard 0. Only the script of locks names them.
pub(super) const LOCK_KEYS: [&str; 2] = ["lk", "lz"];

/// The number of this format of keys and rows. A process that finds a later format in a store changes nothing there
/// and stops. Raise it with each change that an older process would read or write wrongly.
pub(super) const FORMAT: u16 = 5;
/// The earliest format that this version reads: all its rows are also rows of [`FORMAT`]. A call that stores something new
/// raises it, and so does each reserve and settle.
pub(super) const FORMAT_MIN: u16 = 3;

/// The most bytes of a payload that is a part of its record. A larger one is stored apart, so that only calls that return it read it.
const WITHIN_RECORD_MAX: u64 = 1 << 10;
/// How many bytes of payloads a script removes in the time in which it reads one: 64 µs for a mebibyte.
const REMOVED_PER_READ: u64 = 16;

/// About how many commands a script sends that counts jobs of all queues: some milliseconds.
const WALK_COMMANDS: u64 = 1_000;

/// The most rows that a script reads at once before their size is known. Each can have a mebibyte.
const READ_AT_ONCE: u64 = 16;
/// The most members that a call sets aside because something else damaged them.
const ASIDE_MAX: u64 = 256;
/// The most acks between two sweeps of a queue that keeps done jobs. Each of them would cost a third of a life.
const ENDS_MAX: u64 = 64;
/// The bytes of a payload for which such a sweep leaves room. Larger ones lead to a sweep earlier.
const END_BYTES: u64 = 4 << 10;

/// In members of the timeline, these are where a level would be: the mark of blocked jobs, and that of jobs of a group.
const BLOCKED: u64 = 16;
const GROUPED: u64 = 32;

/// Flags in the settings of a queue; see `queue()` in `lua/base.lua`.
const CAPPED: u64 = 4;
const KEEPS_NO_DONE: u64 = 8;
const LIMITED: u64 = 64;
const GROUPS_LIMITED: u64 = 128;

/// When upkeep is due for a queue that holds nothing, in ms: never, and the largest number that scripts count exactly.
const AT_REST: u64 = (1 << 53) - 1;

/// The index of the common key with the records.
pub(super) const RECORDS: usize = 0;
/// The index of the common key with the state of the shard.
pub(super) const STATE: usize = 13;
/// The index of the common key with the names of queues.
pub(super) const NAMES: usize = 16;

const KEY_NAMES: &str = include_str!("lua/key_names.lua");
const SILENCE: &str = include_str!("lua/silence.lua");
const TIMELINE: &str = include_str!("lua/timeline.lua");
const DOCS: &str = include_str!("lua/state/docs.lua");
const QUEUES: &str = include_str!("lua/queues.lua");
const DUE_TIMES: &str = include_str!("lua/verbs/read/due_times.lua");
const PICK: &str =
    concat!(include_str!("lua/verbs/reserve/pick.lua"), include_str!("lua/verbs/reserve/pick_groups.lua"));
const NUMBERED_RESERVE: &str = include_str!("lua/verbs/reserve/numbered.lua");

/// The fast path: it comes first, answers calls with one plain job at a third of the cost, and leaves others to the rest of the script.
const FAST_ENQUEUE: [&str; 2] = [
    include_str!("lua/fast/enqueue.lua"),
    "do local answer = enqueue_one() if answer then return answer end end",
];
/// A step that reads the shard.
const FAST_SHARD: &str = include_str!("lua/fast/shard.lua");
/// A step that stores its mark.
const FAST_MARK: &str = include_str!("lua/fast/mark.lua");
const FAST_EXTEND: [&str; 6] = [
    SILENCE,
    "local function extend_one() local call, pack, unp, sub = redis.call, struct.pack, struct.unpack, string.sub",
    FAST_SHARD,
    include_str!("lua/fast/extend.lua"),
    FAST_MARK,
    "return {'', flags % 2 == 1 and 'c' or 'h'} end do local answer = extend_one() if answer then return answer end end",
];
/// The steps of an ack and a reserve, one function.
const FAST_STEPS: [&str; 17] = [
    SILENCE,
    include_str!("lua/fast/settle/begin.lua"),
    FAST_SHARD,
    include_str!("lua/fast/settle/ack.lua"),
    "if reserves then",
    include_str!("lua/fast/settle/pick.lua"),
    include_str!("lua/fast/settle/groups.lua"),
    include_str!("lua/fast/settle/start.lua"),
    "end",
    include_str!("lua/fast/settle/end.lua"),
    "if reserves then",
    include_str!("lua/fast/settle/place.lua"),
    "end",
    // After a command that frees memory, without which a full server would refuse it.
    FAST_MARK,
    "if not reserves then return {text(now), into, epoch, '', char($DONE)} end",
    include_str!("lua/fast/settle/wake.lua"),
    "end",
];
const FAST_RESERVE: &str = "do local answer = settle_one(0, 2) if answer then return answer end end";
const FAST_SETTLE: &str = "do local acks = tonumber(ARGV[2]) local answer = acks < 2 and settle_one(acks, 2 * acks + 3) if answer then return answer end end";

/// The parts of `rules()`, in this order: each uses the definitions of those before it.
const RULES: [&str; 8] = [
    include_str!("lua/state/codec.lua"),
    include_str!("lua/state/queues.lua"),
    include_str!("lua/state/limits.lua"),
    include_str!("lua/state/keys.lua"),
    include_str!("lua/state/groups.lua"),
    include_str!("lua/state/places.lua"),
    include_str!("lua/state/runs.lua"),
    include_str!("lua/state/upkeep.lua"),
];

/// Returns the numbers that scripts use as `$NAME`, so that no script repeats a number of the Rust code.
fn numbers() -> Vec<(&'static str, u64)> {
    let Defaults { short, long, max_attempts } = defaults();
    vec![
        ("WAITING", code(State::Waiting).into()),
        ("RUNNING", code(State::Running).into()),
        ("DONE", code(State::Done).into()),
        ("CANCELLED", code(State::Cancelled).into()),
        ("DEAD", code(State::Dead).into()),
        ("UNTIL_START", UNTIL_START.into()),
        ("WINDOW", WINDOW.into()),
        ("NOTIFICATIONS", COMMON_KEYS.len() as u64 + 1),
        ("DERIVED", DERIVED_VERSION as u64),
        ("LEVELS", Priority::ALL.len() as u64),
        ("BLOCKED", BLOCKED),
        ("GROUPED", GROUPED),
        ("CAPPED", CAPPED),
        ("KEEPS_NO_DONE", KEEPS_NO_DONE),
        ("LIMITED", LIMITED),
        ("GROUPS_LIMITED", GROUPS_LIMITED),
        ("NEVER", NEVER),
        ("AT_REST", AT_REST),
        ("OPEN", OPEN),
        ("READ_AT_ONCE", READ_AT_ONCE),
        ("ASIDE_MAX", ASIDE_MAX),
        ("CALLS_AHEAD_MAX", limits::CALLS_AHEAD_MAX),
        ("WITHIN_RECORD_MAX", WITHIN_RECORD_MAX),
        ("REMOVED_PER_READ", REMOVED_PER_READ),
        ("WALK_COMMANDS", WALK_COMMANDS),
        ("SPARE", ceil_ms(SPARE)),
        ("TOOL_FORGET_MAX", TOOL_FORGET_MAX as u64),
        ("TOOL_MEMORY", ceil_ms(TOOL_MEMORY)),
        ("BATCH_BYTES_MAX", limits::BATCH_BYTES_MAX as u64),
        ("BLOCKED_SEARCH_MAX", limits::BLOCKED_SEARCH_MAX as u64),
        ("CALL_MEMORY", ceil_ms(limits::CALL_MEMORY)),
        ("CANDIDATES_EXTRA", limits::CANDIDATES_EXTRA as u64),
        ("DOCS_MAX", limits::DOCS_MAX),
        ("FAILURES_MAX", limits::FAILURES_MAX as u64),
        ("FORMAT", FORMAT.into()),
        ("FORMAT_MIN", FORMAT_MIN.into()),
        ("ENDS_MAX", ENDS_MAX),
        ("END_BYTES", END_BYTES),
        ("EXPIRED_LEASES_MAX", limits::EXPIRED_LEASES_MAX.into()),
        ("PAUSE_MAX", ceil_ms(limits::PAUSE_MAX)),
        ("GROUPS_EXTRA", limits::GROUPS_EXTRA as u64),
        ("GROUP_SERVICES_MAX", limits::GROUP_SERVICES_MAX as u64),
        ("HELD_FOR", ceil_ms(limits::HELD_FOR)),
        ("KEEP_SLACK_DIVISOR", limits::KEEP_SLACK_DIVISOR),
        ("KEEP_SLACK_JOBS_MAX", limits::KEEP_SLACK_JOBS_MAX),
        ("KEEP_SLACK_BYTES_MAX", limits::KEEP_SLACK_BYTES_MAX),
        ("GAP", silence::GAP_MS),
        ("STEP_BACK_MIN", ceil_ms(silence::STEP_BACK_MIN)),
        ("STEP_MIN", ceil_ms(steady::STEP_MIN)),
        ("TRUSTED_AFTER", ceil_ms(steady::TRUSTED_AFTER)),
        ("SILENCE_MAX", silence::SILENCE_MAX_MS),
        ("SILENCE_PAUSE_MIN", ceil_ms(limits::SILENCE_PAUSE_MIN)),
        ("SILENCES_MAX", limits::SILENCES_MAX as u64),
        ("ORPHANED_AFTER", ceil_ms(limits::ORPHANED_AFTER)),
        ("WATCHED_MAX", limits::WATCHED_MAX as u64),
        ("ID_MEMORY", ceil_ms(limits::ID_MEMORY)),
        ("ID_MEMORY_MAX", limits::ID_MEMORY_MAX),
        ("INSTANT_MAX_MS", limits::INSTANT_MAX_MS),
        ("LEASE_DEFAULT", ceil_ms(limits::LEASE_DEFAULT)),
        ("KEEP_LONG_AGE", long.age_ms),
        ("KEEP_LONG_BYTES", long.bytes),
        ("KEEP_LONG_COUNT", long.count),
        ("KEEP_SHORT_AGE", short.age_ms),
        ("KEEP_SHORT_BYTES", short.bytes),
        ("KEEP_SHORT_COUNT", short.count),
        ("MAX_ATTEMPTS_DEFAULT", max_attempts.into()),
        ("POISON_LIMIT", limits::POISON_LIMIT.into()),
        ("REGROUP_MAX", limits::REGROUP_MAX as u64),
        ("RECHECK_MAX", limits::RECHECK_MAX as u64),
        ("SNOOZES_MAX", limits::SNOOZES_MAX.into()),
        ("SNOOZE_MIN", ceil_ms(limits::SNOOZE_MIN)),
        ("STRIDE", STRIDE),
        ("SWEEP_RIDE_MAX", limits::SWEEP_RIDE_MAX as u64),
        ("RECLAIM_MAX", limits::RECLAIM_MAX as u64),
    ]
}

/// The words of the common keys, in the order of [`COMMON_KEYS`]. Scripts write `$RECORDS` for `KEYS[1]`: a local of a script
/// costs each call some instructions, and so does its capture by a function.
const KEY_WORDS: [&str; COMMON_KEYS.len()] = [
    "RECORDS",
    "HISTORIES",
    "TIMELINE",
    "EXPIRIES",
    "RUNS",
    "LEASES",
    "ENDED_JOBS",
    "UNIQUE_KEYS",
    "WINDOWS",
    "REMEMBERED_BY_END",
    "REMEMBERED",
    "CALLS",
    "CALLS_BY_TIME",
    "STATE",
    "QUEUES",
    "SETTINGS",
    "NAMES",
    "COUNTERS",
    "RUNNING_KEYS",
    "GROUPS_BY_PLACE",
    "GROUPS",
    "PAYLOADS",
];

/// What stands for each `$NAME` in a script.
static CONSTANTS: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let numbers = numbers().into_iter().map(|(name, number)| (name, number.to_string()));
    let keys = KEY_WORDS.iter().zip(1..).map(|(word, position)| (*word, format!("KEYS[{position}]")));
    numbers.chain(keys).collect()
});

/// Returns a part with its constants inserted.
fn with_constants(part: &str) -> String {
    let mut pieces = part.split('$');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let is_of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let (name, rest) = piece.split_at(piece.find(|c| !is_of_name(c)).unwrap_or(piece.len()));
        match CONSTANTS.get(name) {
            Some(value) => text.extend([value, rest]),
            None => text.extend(["$", piece]),
        }
    }
    text
}

fn made(name: &'static str, parts: &[&str]) -> Script {
    let parts: Vec<String> = parts.iter().map(|part| with_constants(part)).collect();
    Script::new(name, &parts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Makes a script from these parts, after the common ones.
///
/// Parts that are needed less often are functions that are made only when they are needed. The larger one repeats the
/// common words and captures only the arguments of the script. Each of its parts is a function within the part before: a function
/// captures a local of the function around it by a search among all captured ones, and one of the functions further out by a copy.
fn script(name: &'static str, parts: &[&str]) -> Script {
    let before = [KEY_NAMES, "local function make_rules(shard, queue, pending) local rules = {}", KEY_NAMES];
    let rules = RULES.iter().flat_map(|part| ["return (function()", part]).collect::<Vec<_>>();
    let ends = "end)() ".repeat(RULES.len());
    let after = [
        "return rules",
        &ends,
        "end",
        "local function make_pending(shard, queue, rules, now)",
        include_str!("lua/notifications.lua"),
        "end",
        SILENCE,
        include_str!("lua/base.lua"),
    ];
    made(name, &[&before[..], &rules, &after, parts].concat())
}

/// Makes a script with a fast path before everything.
fn fast_script(name: &'static str, fast: &[&str], parts: &[&str]) -> Script {
    let without = script(name, parts);
    #[allow(unused_mut, reason = "tests need the part alone, too")]
    let mut all = Script::new(name, &[made(name, fast).text(), without.text()]);
    #[cfg(feature = "testing")]
    {
        all.without_fast = Some(Box::new(without));
    }
    all
}

/// Makes a script of a tool, which shares nothing with those of jobs.
fn tool(name: &'static str, text: &str) -> Script {
    made(name, &[include_str!("lua/toolkit/tool.lua"), text])
}

/// The scripts, one per verb.
pub(super) struct Scripts {
    pub(super) enqueue: LazyLock<Script>,
    pub(super) reserve: LazyLock<Script>,
    pub(super) settle: LazyLock<Script>,
    pub(super) extend: LazyLock<Script>,
    pub(super) take: LazyLock<Script>,
    pub(super) act: LazyLock<Script>,
    pub(super) watch: LazyLock<Script>,
    pub(super) live: LazyLock<Script>,
    pub(super) get: LazyLock<Script>,
    pub(super) list: LazyLock<Script>,
    pub(super) count: LazyLock<Script>,
    pub(super) upcoming: LazyLock<Script>,
    pub(super) show: LazyLock<Script>,
    pub(super) set: LazyLock<Script>,
    pub(super) open: LazyLock<Script>,
    pub(super) purge: LazyLock<Script>,
    pub(super) doc: LazyLock<Script>,
    pub(super) sweep: LazyLock<Script>,
    pub(super) audit: LazyLock<Script>,
    pub(super) epoch: LazyLock<Script>,
    pub(super) layout: LazyLock<Script>,
    pub(super) misplaced: LazyLock<Script>,
    pub(super) identity: LazyLock<Script>,
    pub(super) restore: LazyLock<Script>,
    pub(super) log: LazyLock<Script>,
    pub(super) gcra: LazyLock<Script>,
    pub(super) lock: LazyLock<Script>,
    pub(super) board: LazyLock<Script>,
}

/// All scripts. Each is made when it is first used: a command of the command line needs few of them.
pub(super) static SCRIPTS: Scripts = Scripts {
    enqueue: LazyLock::new(|| {
        fast_script("enqueue", &FAST_ENQUEUE, &[TIMELINE, include_str!("lua/verbs/enqueue.lua")])
    }),
    reserve: LazyLock::new(|| {
        fast_script(
            "reserve",
            &[&FAST_STEPS[..], &[FAST_RESERVE]].concat(),
            &[TIMELINE, PICK, NUMBERED_RESERVE, include_str!("lua/verbs/reserve.lua")],
        )
    }),
    settle: LazyLock::new(|| {
        fast_script(
            "settle",
            &[&FAST_STEPS[..], &[FAST_SETTLE]].concat(),
            &[TIMELINE, PICK, NUMBERED_RESERVE, include_str!("lua/verbs/settle.lua")],
        )
    }),
    extend: LazyLock::new(|| fast_script("extend", &FAST_EXTEND, &[include_str!("lua/verbs/extend.lua")])),
    take: LazyLock::new(|| script("take", &[TIMELINE, PICK, include_str!("lua/verbs/take.lua")])),
    act: LazyLock::new(|| script("act", &[include_str!("lua/verbs/act.lua")])),
    watch: LazyLock::new(|| script("watch", &[include_str!("lua/watch.lua")])),
    live: LazyLock::new(|| script("live", &[include_str!("lua/sharded/live.lua")])),
    get: LazyLock::new(|| script("get", &[include_str!("lua/verbs/read/get.lua")])),
    list: LazyLock::new(|| script("list", &[include_str!("lua/verbs/read/list.lua")])),
    count: LazyLock::new(|| script("count", &[QUEUES, DUE_TIMES, include_str!("lua/verbs/read/count.lua")])),
    upcoming: LazyLock::new(|| script("upcoming", &[DUE_TIMES, include_str!("lua/verbs/read/upcoming.lua")])),
    show: LazyLock::new(|| script("show", &[TIMELINE, QUEUES, include_str!("lua/verbs/queue/show.lua")])),
    set: LazyLock::new(|| script("set", &[TIMELINE, include_str!("lua/verbs/queue/set.lua")])),
    open: LazyLock::new(|| script("open", &[TIMELINE, include_str!("lua/verbs/queue/open.lua")])),
    purge: LazyLock::new(|| script("purge", &[include_str!("lua/verbs/queue/purge.lua")])),
    doc: LazyLock::new(|| script("doc", &[DOCS, include_str!("lua/verbs/doc.lua")])),
    sweep: LazyLock::new(|| script("sweep", &[QUEUES, include_str!("lua/verbs/sweep.lua")])),
    audit: LazyLock::new(|| script("audit", &[DOCS, include_str!("lua/audit.lua")])),
    epoch: LazyLock::new(|| script("epoch", &[include_str!("lua/sharded/epoch.lua")])),
    layout: LazyLock::new(|| script("layout", &[include_str!("lua/sharded/layout.lua")])),
    misplaced: LazyLock::new(|| script("misplaced", &[QUEUES, include_str!("lua/sharded/misplaced.lua")])),
    identity: LazyLock::new(|| script("identity", &[include_str!("lua/identity.lua")])),
    restore: LazyLock::new(|| made("restore", &[KEY_NAMES, include_str!("lua/sharded/restore.lua")])),
    log: LazyLock::new(|| tool("log", include_str!("lua/toolkit/log.lua"))),
    gcra: LazyLock::new(|| tool("gcra", include_str!("lua/toolkit/gcra.lua"))),
    lock: LazyLock::new(|| tool("lock", include_str!("lua/toolkit/lock.lua"))),
    board: LazyLock::new(|| tool("board", include_str!("lua/toolkit/board.lua"))),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_name_constants_that_there_are() {
        assert_eq!(
            with_constants("local a, b = $ID_MEMORY, $ID_MEMORY_MAX"),
            "local a, b = 86400000, 1000000"
        );
        let Scripts {
            enqueue,
            reserve,
            settle,
            extend,
            take,
            act,
            watch,
            live,
            get,
            list,
            count,
            upcoming,
            show,
            set,
            open,
            purge,
            doc,
            sweep,
            audit,
            epoch,
            layout,
            misplaced,
            identity,
            restore,
            log,
            gcra,
            lock,
            board,
        } = &SCRIPTS;
        for script in [
            enqueue, reserve, settle, extend, take, act, watch, live, get, list, count, upcoming, show, set,
            open, purge, doc, sweep, audit, epoch, layout, misplaced, identity, restore, log, gcra, lock,
            board,
        ] {
            let text = script.text();
            let unknown = text.match_indices('$').map(|(at, _)| &text[at + 1..]);
            let unknown: Vec<_> =
                unknown.filter(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase())).collect();
            assert_eq!(unknown.first(), None, "{}", script.name());
        }
    }

    #[test]
    fn each_word_stands_for_the_key_that_the_table_says() {
        for ((word, key), position) in KEY_WORDS.iter().zip(COMMON_KEYS).zip(1..) {
            let begin = format!("-- {position:>3} {key}  ");
            let row = KEY_NAMES.lines().find_map(|line| line.strip_prefix(&begin)).expect(key);
            assert_eq!(row.split_whitespace().nth(1), Some(*word), "{row}");
        }
    }
}
