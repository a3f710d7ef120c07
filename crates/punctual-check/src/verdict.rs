//! What the judge says: counts per rule, some violations word for word, and one word in the end.

use std::{collections::BTreeMap, fmt};

use punctual::JobId;
use serde::Serialize;

/// The judgement of one history.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// The word.
    pub verdict: Word,
    /// Jobs that somebody tried to enqueue.
    pub attempt: u64,
    /// Jobs whose enqueue was acknowledged.
    pub acked: u64,
    /// Acknowledged jobs that ended as their last verdict says, or still wait.
    pub ok: u64,
    /// Jobs at rest that still wait or run.
    pub waiting: u64,
    /// Jobs at rest that are dead.
    pub dead: u64,
    /// Acknowledged jobs of which there is no trace (D1).
    pub lost: u64,
    /// Runs of jobs that nobody enqueued, or with another payload (D2).
    pub unexpected: u64,
    /// Jobs never acknowledged, yet run: their enqueue took effect and its answer was lost.
    pub recovered: u64,
    /// Runs that ordinarily follow a failure, a snooze, a release or an operator's retry.
    pub retried: u64,
    /// Runs after the first that follow no such verdict (D5).
    pub duplicated: Duplicated,
    /// What was answered in the last moments before a kill of the server, and did not come true.
    pub undone: Undone,
    /// Runs before their time (T1).
    pub early: u64,
    /// Fences that did not rise (F1).
    pub fence_regressions: u64,
    /// Leases of one job that were current at once (D6).
    pub overlaps: u64,
    /// Concurrency keys.
    pub keys: Kept,
    /// Groups of queues whose limit was noted.
    pub groups: Kept,
    /// What each change of how jobs are placed met.
    pub moved: Vec<Moved>,
    /// From due to the handler's start, in milliseconds (T2).
    pub lateness_ms: Lateness,
    /// Jobs that were replayed in the model (M).
    pub replayed: Replayed,
    /// Violations per rule.
    pub rules: BTreeMap<&'static str, u64>,
    /// The first few violations of each rule.
    pub violations: Vec<Violation>,
    /// Lines read.
    pub events: u64,
    /// Files read.
    pub files: u64,
    /// Files that end in the middle of a line.
    pub torn: u64,
    /// Processes killed.
    pub kills: u64,
    /// Kills of the store's server.
    pub server_kills: u64,
    /// Processes that were stopped for a while.
    pub frozen: u64,
    /// How often harm of another sort was done.
    pub harmed: u64,
    /// How often the machine stood still for long enough to cost a lease.
    pub stalls: u64,
    /// Kills of both sorts that cut something short, a call or a run, and stops of a process that cost it a lease.
    pub hits: u64,
}

/// What came of the jobs that were replayed in the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Those of which it explains every answer.
    pub fits: u64,
    /// Those that show nothing: a call without an answer may explain what it does not, or something about them is not replayed.
    pub unclear: u64,
    /// Those of which nothing explains an answer.
    pub differs: u64,
}

/// The last word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// Every rule holds.
    Valid,
    /// A rule is broken.
    Invalid,
    /// Nothing was acknowledged, or there is no complete dump: nothing was proved.
    #[default]
    Vacuous,
}

impl Word {
    /// The code with which a program ends that says this.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Valid => 0,
            Self::Invalid => 1,
            Self::Vacuous => 3,
        }
    }
}

/// Runs after the first that follow no verdict that asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Duplicated {
    /// The run before lost its lease, or may have.
    pub explained: u64,
    /// Nothing explains them.
    pub unexplained: u64,
    /// Most duplicates that the harm done explains: for each process that was killed its slots for jobs and for
    /// publications, for each kill of the store's server, or other harm, the slots of all; for a stall of the machine these once, and once more
    /// for each lease that it lasted.
    pub budget: u64,
}

/// What a kill of the server undid, and may have undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Undone {
    /// Acknowledged jobs of which there is no trace.
    pub lost: u64,
    /// Runs of jobs that had ended, or were under a lease.
    pub again: u64,
}

/// Limits of how many jobs run at once (L1), and how far they were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Keys, or groups, of which a job ran.
    pub number: u64,
    /// Those of which as many ran at once as may.
    pub full: u64,
    /// The most jobs of one of them that ran at once.
    pub at_once: u64,
}

/// What a change of how jobs are placed in shards met: keys and groups with a job that lived through it, beside which one was
/// enqueued after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// What it changed to.
    pub to: String,
    /// Concurrency keys.
    pub keys: u64,
    /// Groups.
    pub groups: u64,
}

/// Quantiles of lateness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Runs measured.
    pub runs: u64,
    /// Half are no later.
    pub p50: u64,
    /// 99 of 100 are no later.
    pub p99: u64,
    /// The latest.
    pub max: u64,
}

impl Lateness {
    /// Of these, in any order.
    pub(crate) fn of(mut late: Vec<u64>) -> Self {
        late.sort_unstable();
        let at = |per_mille: usize| late.get((late.len() * per_mille).div_ceil(1_000).saturating_sub(1));
        Self {
            runs: late.len() as u64,
            p50: at(500).copied().unwrap_or(0),
            p99: at(990).copied().unwrap_or(0),
            max: late.last().copied().unwrap_or(0),
        }
    }
}

/// A broken rule.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// Its name.
    pub rule: &'static str,
    /// The job, where one is concerned.
    pub id: Option<JobId>,
    /// What was seen.
    pub detail: String,
}

/// Violations told in full per rule.
const TOLD_MAX: u64 = 10;

impl Verdict {
    /// Counts a violation, and tells it unless enough of its rule were told.
    pub(crate) fn broken(&mut self, rule: &'static str, id: Option<JobId>, detail: impl FnOnce() -> String) {
        let count = self.rules.entry(rule).or_default();
        *count += 1;
        if *count <= TOLD_MAX {
            self.violations.push(Violation { rule, id, detail: detail() });
        }
    }

    /// Violations of a rule.
    pub fn count(&self, rule: &str) -> u64 {
        self.rules.get(rule).copied().unwrap_or(0)
    }
}

impl fmt::Display for Verdict {
    /// For people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Duplicated { explained, unexplained, budget } = self.duplicated;
        let late = self.lateness_ms;
        writeln!(
            f,
            "{} events in {} files, {} processes killed, {} kills cut something short\n\
             {} jobs tried, {} acknowledged, {} accounted for, {} still waiting, {} dead, {} recovered, {} lost\n\
             {} ordinary retries, {explained} duplicates explained (at most {budget} by the harm done), {unexplained} unexplained\n\
             {} unexpected, {} early, {} fence regressions, {} overlaps\n\
             lateness of {} runs: p50 {} ms, p99 {} ms, max {} ms",
            self.events,
            self.files,
            self.kills,
            self.hits,
            self.attempt,
            self.acked,
            self.ok,
            self.waiting,
            self.dead,
            self.recovered,
            self.lost,
            self.retried,
            self.unexpected,
            self.early,
            self.fence_regressions,
            self.overlaps,
            late.runs,
            late.p50,
            late.p99,
            late.max,
        )?;
        for (what, kept) in [("concurrency keys", self.keys), ("groups", self.groups)] {
            let Kept { number, full, at_once } = kept;
            if 0 < number {
                writeln!(
                    f,
                    "{number} {what}, at most {at_once} jobs of one at once; {full} were at their limit"
                )?;
            }
        }
        let Replayed { fits, unclear, differs } = self.replayed;
        if 0 < fits + unclear + differs {
            writeln!(f, "replayed in the model: {fits} jobs fit, {unclear} are unclear, {differs} differ")?;
        }
        for Moved { to, keys, groups } in &self.moved {
            writeln!(f, "{to}: {keys} keys and {groups} groups had live jobs on both sides of the change")?;
        }
        if 0 < self.server_kills {
            let Undone { lost, again } = self.undone;
            let kills = self.server_kills;
            writeln!(f, "{kills} kills of the server, which undid {lost} jobs and the end of {again} runs")?;
        }
        if 0 < self.stalls {
            writeln!(f, "stalls of the machine that were long enough to cost a lease: {}", self.stalls)?;
        }
        for Violation { rule, id, detail } in &self.violations {
            match id {
                Some(id) => writeln!(f, "{rule}: job {id}: {detail}")?,
                None => writeln!(f, "{rule}: {detail}")?,
            }
        }
        for (rule, count) in self.rules.iter().filter(|(_, count)| TOLD_MAX < **count) {
            writeln!(f, "{rule}: {count} in all")?;
        }
        f.write_str(match self.verdict {
            Word::Valid => "valid: every rule holds",
            Word::Invalid => "INVALID",
            Word::Vacuous => "VACUOUS: nothing acknowledged, or no complete dump; this run proves nothing",
        })
    }
}
