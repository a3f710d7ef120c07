//! The scripts, put together from their parts.

use std::sync::LazyLock;

use super::script::Script;

/// The keys that every script names, in the order in which `lua/common.lua` takes them.
pub(super) const COMMON_KEYS: [&str; 19] =
    ["j", "x", "t", "o", "r", "l", "e", "u", "v", "k", "m", "p", "a", "s", "q", "i", "n", "c", "d"];

/// Which of them names the queues.
pub(super) const NAMES: usize = 16;

const COMMON: &str = include_str!("lua/common.lua");
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
            enqueue: Script::new("enqueue", &[COMMON, include_str!("lua/enqueue.lua")]),
            reserve: Script::new("reserve", &[COMMON, PICK, RESERVING, include_str!("lua/reserve.lua")]),
            settle: Script::new("settle", &[COMMON, PICK, RESERVING, include_str!("lua/settle.lua")]),
            extend: Script::new("extend", &[COMMON, include_str!("lua/extend.lua")]),
            take: Script::new("take", &[COMMON, PICK, include_str!("lua/take.lua")]),
            act: Script::new("act", &[COMMON, include_str!("lua/act.lua")]),
            get: Script::new("get", &[COMMON, include_str!("lua/get.lua")]),
            list: Script::new("list", &[COMMON, include_str!("lua/list.lua")]),
            count: Script::new("count", &[COMMON, COUNTING, include_str!("lua/count.lua")]),
            upcoming: Script::new("upcoming", &[COMMON, include_str!("lua/upcoming.lua")]),
            show: Script::new("show", &[COMMON, COUNTING, include_str!("lua/show.lua")]),
            set: Script::new("set", &[COMMON, include_str!("lua/set.lua")]),
            purge: Script::new("purge", &[COMMON, include_str!("lua/purge.lua")]),
            sweep: Script::new("sweep", &[COMMON, include_str!("lua/sweep.lua")]),
            audit: Script::new("audit", &[COMMON, include_str!("lua/audit.lua")]),
        }
    }
}
