//! The figures of the tools, as one JSON object or as two tables.

use std::fmt;

use serde::Serialize;

use super::board::MEMBERS as LISTED;

/// All of one run. What a store has not is null.
#[derive(Debug, Serialize)]
pub(in super::super) struct Figures {
    store: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    durability: &'static str,
    /// Of each figure of memory.
    keys: usize,
    pub(super) limiters: Vec<LimiterFigures>,
    pub(super) boards: Vec<BoardFigures>,
}

impl Figures {
    pub(super) const fn new(
        store: String,
        version: Option<String>,
        durability: &'static str,
        keys: usize,
    ) -> Self {
        Self { store, version, durability, keys, limiters: Vec::new(), boards: Vec::new() }
    }
}

/// Calls per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Speed {
    /// Of one caller.
    pub(super) per_s: f64,
    /// Of 64.
    pub(super) per_s_64: f64,
    /// Microseconds of the server's scripts for each call of the 64.
    pub(super) server_us: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct LimiterFigures {
    pub(super) name: &'static str,
    /// Half of the calls pass.
    #[serde(flatten)]
    pub(super) speed: Speed,
    /// In a period, while 64 call at once.
    pub(super) may_pass: u32,
    /// As many surely did in one.
    pub(super) most_in_a_period: u32,
    /// How many of those that may pass did.
    pub(super) used_percent: f64,
    /// Of a key that was called once.
    pub(super) bytes_per_key: Option<f64>,
    /// Of a key that was called 100 times.
    pub(super) bytes_per_full_key: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct BoardFigures {
    pub(super) name: &'static str,
    pub(super) adds: Speed,
    /// The first ten of 10,000 members, or of all if there are fewer.
    pub(super) tops: Speed,
    /// Of what 64 callers added at once.
    pub(super) is_sum_right: bool,
    #[serde(flatten)]
    pub(super) large: LargeFigures,
}

/// Of a board with all members of the figures of memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct LargeFigures {
    pub(super) bytes_per_member: Option<f64>,
    /// The same after the first ten were requested.
    pub(super) bytes_per_member_listed: Option<f64>,
    /// The first ten.
    pub(super) top_ms: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version.as_ref().map(|version| format!(" · {version}")).unwrap_or_default();
        writeln!(f, "{}{version} · durability {}", self.store, self.durability)?;
        let limiters = &self.limiters;
        names(f, "rate limiters", limiters.iter().map(|l| l.name))?;
        row(f, "calls/s, 1 caller", limiters.iter().map(|l| whole(l.speed.per_s)))?;
        row(f, "calls/s, 64 callers", limiters.iter().map(|l| whole(l.speed.per_s_64)))?;
        row(f, "server, µs/call", limiters.iter().map(|l| tenths(l.speed.server_us)))?;
        let most = |l: &LimiterFigures| format!("{} of {}", l.most_in_a_period, l.may_pass);
        row(f, "most in a period, 64 callers", limiters.iter().map(most))?;
        row(f, "of all that may pass did, %", limiters.iter().map(|l| whole(l.used_percent)))?;
        row(f, &format!("bytes/key, {} keys", self.keys), limiters.iter().map(|l| tenths(l.bytes_per_key)))?;
        row(f, "bytes/key of 100 calls", limiters.iter().map(|l| tenths(l.bytes_per_full_key)))?;
        let boards = &self.boards;
        names(f, "leaderboards", boards.iter().map(|b| b.name))?;
        row(f, "adds/s, 1 caller", boards.iter().map(|b| whole(b.adds.per_s)))?;
        row(f, "adds/s, 64 callers", boards.iter().map(|b| whole(b.adds.per_s_64)))?;
        row(f, "server, µs/add", boards.iter().map(|b| tenths(b.adds.server_us)))?;
        let listed = LISTED.min(self.keys);
        row(f, &format!("first ten of {listed}/s, 1 caller"), boards.iter().map(|b| whole(b.tops.per_s)))?;
        row(f, "first ten/s, 64 callers", boards.iter().map(|b| whole(b.tops.per_s_64)))?;
        row(f, "server, µs/list", boards.iter().map(|b| tenths(b.tops.server_us)))?;
        row(
            f,
            "sum of 64 callers is",
            boards.iter().map(|b| if b.is_sum_right { "right" } else { "WRONG" }.into()),
        )?;
        row(
            f,
            &format!("first ten of {}, ms", self.keys),
            boards.iter().map(|b| tenths(Some(b.large.top_ms))),
        )?;
        row(f, "bytes/member of these", boards.iter().map(|b| tenths(b.large.bytes_per_member)))?;
        row(f, "bytes/member, once listed", boards.iter().map(|b| tenths(b.large.bytes_per_member_listed)))
    }
}

fn names(f: &mut fmt::Formatter<'_>, what: &str, names: impl Iterator<Item = &'static str>) -> fmt::Result {
    row(f, what, names.map(str::to_owned))
}

fn row(f: &mut fmt::Formatter<'_>, what: &str, values: impl Iterator<Item = String>) -> fmt::Result {
    write!(f, "{what:<34}")?;
    for value in values {
        write!(f, "{value:>20}")?;
    }
    writeln!(f)
}

fn whole(n: f64) -> String {
    format!("{n:.0}")
}

fn tenths(n: Option<f64>) -> String {
    n.map(|n| format!("{n:.1}")).unwrap_or_default()
}
