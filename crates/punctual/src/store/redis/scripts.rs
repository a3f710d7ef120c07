//! The scripts, put together from their parts.

use std::sync::LazyLock;

use super::script::Script;

/// The keys that every script names, in the order in which `lua/base.lua` takes them.
pub(super) const COMMON_KEYS: [&str; 18] =
    ["j", "x", "t", "o", "r", "l", "e", "u", "v", "k", "m", "p", "a", "s", "q", "i", "n", "c"];

/// Which of them names the queues.
pub(super) const NAMES: usize = 16;

const BASE: &str = include_str!("lua/base.lua");
const JOBS: &str = include_str!("lua/jobs.lua");
const WALK: &str = include_str!("lua/walk.lua");
const UPKEEP: &str = include_str!("lua/upkeep.lua");
const PICK: &str = include_str!("lua/pick.lua");
const RESERVING: &str = include_str!("lua/reserving.lua");
const COUNTING: &str = include_str!("lua/counting.lua");

/// All of them, their names computed once.
pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(Scripts::default);

/// One script per verb.
pub(super) struct Scripts {
    pub(super) enqueue: Script,
    pub(super) reserve: Script,
    pub(super) settle: Script,
    pub(super) extend: Script,
    pub(super) take: Script,
    pub(super) act: Script,
    pub(super) get: Script,
    pub(super) list: Script,
    pub(super) count: Script,
    pub(super) upcoming: Script,
    pub(super) show: Script,
    pub(super) set: Script,
    pub(super) purge: Script,
    pub(super) sweep: Script,
    pub(super) audit: Script,
}

impl Default for Scripts {
    fn default() -> Self {
        Self {
            enqueue: Script::new("enqueue", &[BASE, JOBS, WALK, include_str!("lua/enqueue.lua")]),
            reserve: Script::new(
                "reserve",
                &[BASE, JOBS, UPKEEP, WALK, PICK, RESERVING, include_str!("lua/reserve.lua")],
            ),
            settle: Script::new(
                "settle",
                &[BASE, JOBS, UPKEEP, WALK, PICK, RESERVING, include_str!("lua/settle.lua")],
            ),
            extend: Script::new("extend", &[BASE, JOBS, include_str!("lua/extend.lua")]),
            take: Script::new("take", &[BASE, JOBS, UPKEEP, WALK, PICK, include_str!("lua/take.lua")]),
            act: Script::new("act", &[BASE, JOBS, include_str!("lua/act.lua")]),
            get: Script::new("get", &[BASE, JOBS, include_str!("lua/get.lua")]),
            list: Script::new("list", &[BASE, JOBS, include_str!("lua/list.lua")]),
            count: Script::new("count", &[BASE, COUNTING, include_str!("lua/count.lua")]),
            upcoming: Script::new("upcoming", &[BASE, include_str!("lua/upcoming.lua")]),
            show: Script::new("show", &[BASE, WALK, COUNTING, include_str!("lua/show.lua")]),
            set: Script::new("set", &[BASE, WALK, include_str!("lua/set.lua")]),
            purge: Script::new("purge", &[BASE, JOBS, include_str!("lua/purge.lua")]),
            sweep: Script::new("sweep", &[BASE, JOBS, UPKEEP, include_str!("lua/sweep.lua")]),
            audit: Script::new("audit", &[BASE, JOBS, include_str!("lua/audit.lua")]),
        }
    }
}
