//! Why a job does not run, or how it ended: facts of the job, of its queue and of what runs beside it. Pure. Front ends give the words for
//! instants and numbers, and say what can be done.

use crate::{
    core::{
        job::{JobRecord, State},
        lifecycle::is_last_chance,
        time::Timestamp,
        words::{counted, due, grouped},
    },
    store::QueueInfo,
};

/// The reason of a job that was snoozed because its worker has no handler for its kind; also its code here.
pub const UNKNOWN_KIND: &str = "unknown_kind";
/// The reason of a job that its worker gave back, because other jobs on their last chance ran there; also its code here.
pub const LAST_CHANCE: &str = "last_chance";

/// One reason. Of several, the first weighs most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// In a word, for programs.
    pub code: &'static str,
    /// A sentence without its capital letter and its full stop.
    pub text: String,
}

/// What runs beside a job that is blocked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    /// Running jobs of its group, or of none if it has none.
    pub of_group: u32,
    /// Running jobs of its concurrency key, and of its group if it has one.
    pub of_key: u32,
    /// Whether more may run than were counted.
    pub is_part: bool,
}

impl Beside {
    /// Nothing was counted.
    pub const UNKNOWN: Self = Self { of_group: 0, of_key: 0, is_part: true };
}

/// How a front end writes instants and numbers.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// Writes an instant.
    pub at: &'a dyn Fn(Timestamp) -> String,
    /// Stands between groups of three digits.
    pub separator: char,
}

impl Words<'_> {
    fn counted(&self, n: impl Into<u64>, noun: &str) -> String {
        counted(n.into(), noun, self.separator)
    }
}

/// A job and what is known of it.
struct Look<'a> {
    job: &'a JobRecord,
    queue: Option<&'a QueueInfo>,
    beside: Beside,
    now: Timestamp,
    words: Words<'a>,
    reasons: Vec<Reason>,
}

/// Returns what keeps a job from running, or how it ended.
pub fn reasons(
    job: &JobRecord,
    queue: Option<&QueueInfo>,
    beside: Beside,
    now: Timestamp,
    words: Words<'_>,
) -> Vec<Reason> {
    let mut look = Look { job, queue, beside, now, words, reasons: Vec::new() };
    match job.state {
        State::Waiting => look.waiting(),
        State::Running => look.running(),
        State::Done => look.ended("done", "the job is done"),
        State::Dead => look.dead(),
        State::Cancelled => {
            let why = match job.reason.as_deref() {
                Some("expired") => "the job expired before it started".to_owned(),
                Some("cancelled") | None => "the job was cancelled".to_owned(),
                Some(reason) => format!("the job was cancelled: {reason}"),
            };
            look.ended("cancelled", &why);
        }
    }
    look.reasons
}

impl Look<'_> {
    fn add(&mut self, code: &'static str, text: impl Into<String>) {
        self.reasons.push(Reason { code, text: text.into() });
    }

    fn at(&self, instant: Timestamp) -> String {
        (self.words.at)(instant)
    }

    fn waiting(&mut self) {
        let (job, now) = (self.job, self.now);
        let pause = self.queue.and_then(|queue| queue.settings.paused.as_ref());
        if let Some(pause) = pause {
            let since = self.at(Timestamp::saturating_from_ms(pause.since_ms));
            let text =
                format!("queue {} is paused (by {}, {since}, \"{}\")", job.queue, pause.by, pause.reason);
            self.add("paused", text);
        }
        let is_over = job.expires_at.is_some_and(|expires_at| expires_at <= now);
        if is_over {
            self.add("expired", "the job expired before it started, and will be cancelled");
        }
        self.was_given_back();
        if now < job.run_at {
            self.last_failure(1 < job.attempt);
            self.add("not_due", format!("the job is due {}", self.at(job.run_at)));
            return;
        }
        let before = self.reasons.len();
        self.key_holds();
        if let Some(queue) = self.queue {
            self.queue_holds(queue);
            self.group_holds(queue);
            if self.reasons.len() == before && pause.is_none() && !is_over {
                self.nothing_holds(queue);
            }
        }
        self.last_failure(1 < job.attempt);
    }

    fn nothing_holds(&mut self, queue: &QueueInfo) {
        if self.job.blocked && self.beside.is_part && self.job.concurrency.is_some() {
            return self.limit_holds();
        }
        let (counts, separator) = (&queue.counts, self.words.separator);
        let text = format!(
            "the job has been due since {}, and nothing holds it back: it waits for a free slot of a worker; queue {} has {} due and {} running jobs",
            self.at(self.job.run_at),
            self.job.queue,
            due(counts.due, separator),
            grouped(counts.running, separator)
        );
        self.add("ready", text);
    }

    /// A limit holds the job back, and it is not known which one.
    fn limit_holds(&mut self) {
        let key = self.job.concurrency.as_ref();
        let key = key.map(|of| format!("its concurrency key {:?} (at most {} at once)", of.key, of.limit));
        let group = self.job.group.as_ref().map(|group| format!("a limit of its group {group:?}"));
        let by: Vec<String> = key.into_iter().chain(group).collect();
        self.add("blocked", format!("the job is due, but {} holds it back", by.join(" or ")));
    }

    /// Why a worker gave the job back without a verdict of its handler, or its handler snoozed it.
    fn was_given_back(&mut self) {
        let job = self.job;
        match job.reason.as_deref() {
            Some(UNKNOWN_KIND) => self.add(
                UNKNOWN_KIND,
                format!("the worker that reserved the job has no handler for kind {}", job.kind),
            ),
            Some(LAST_CHANCE) if self.now < job.run_at => self.add(
                LAST_CHANCE,
                format!(
                    "held: after {} in a row, the job runs apart from others like it, and its worker gave it back",
                    self.words.counted(job.expired_leases, "expired lease")
                ),
            ),
            Some(LAST_CHANCE) => {}
            reason if 0 < job.snoozes => {
                let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                let times = self.words.counted(job.snoozes, "time");
                self.add("snoozed", format!("its handler snoozed the job {times} in a row{why}"));
            }
            _ => {}
        }
    }

    fn last_failure(&mut self, is_shown: bool) {
        if let (true, Some(failure)) = (is_shown, self.job.failures.last()) {
            self.add("failed", format!("attempt {} failed: {}", failure.attempt, failure.error));
        }
    }

    fn key_holds(&mut self) {
        let Some(of) = self.job.concurrency.as_ref().filter(|_| self.key_is_full()) else { return };
        let runs = if of.limit == 1 {
            "another job with this key is running".to_owned()
        } else {
            format!("{} with this key are running, its limit", self.words.counted(of.limit, "job"))
        };
        if self.job.blocked {
            let text = format!("the job is due, but its concurrency key {:?} is in use: {runs}", of.key);
            self.add("concurrency_key", text);
        }
    }

    fn key_is_full(&self) -> bool {
        self.job.concurrency.as_ref().is_some_and(|of| of.limit <= self.beside.of_key)
    }

    /// How the queue holds back a due job.
    fn queue_holds(&mut self, queue: &QueueInfo) {
        let (name, running) = (&self.job.queue, queue.counts.running);
        if let Some(most) = queue.settings.concurrency.filter(|most| u64::from(*most) <= running) {
            let runs = self.words.counted(running, "job");
            self.add("limit", format!("queue {name} runs {runs}, its limit of {most}"));
        }
        if let Some(opens_at) = queue.opens_at {
            let why = pause(queue.settings.rate.is_some());
            self.add("closed", format!("queue {name} starts nothing until {}, {why}", self.at(opens_at)));
        }
    }

    /// How its group holds back a due job.
    fn group_holds(&mut self, queue: &QueueInfo) {
        let (job, name) = (self.job, &self.job.queue);
        let Some(group) = job.group.as_deref() else { return };
        let limits = queue.settings.of_group(group);
        if let Some(most) = limits.concurrency.filter(|most| *most <= self.beside.of_group) {
            let runs = self.words.counted(self.beside.of_group, "job");
            self.add(
                "group_limit",
                format!("group {group:?} of queue {name} runs {runs}, its limit of {most}"),
            );
            return;
        }
        // The job is blocked, and only a limit over time is left as the reason.
        let most = queue.settings.concurrency.map(u64::from);
        let by_queue = queue.opens_at.is_some() || most.is_some_and(|most| most <= queue.counts.running);
        if !job.blocked || self.key_is_full() || by_queue {
            return;
        }
        if self.beside.is_part && (job.concurrency.is_some() || limits.concurrency.is_some()) {
            self.limit_holds();
        } else {
            let why = pause(limits.rate.is_some());
            self.add(
                "group_closed",
                format!("group {group:?} of queue {name} starts nothing for now, {why}"),
            );
        }
    }

    fn running(&mut self) {
        let job = self.job;
        if let Some(running) = &job.running {
            let text = format!(
                "worker {} runs attempt {} of {}; its lease lasts until {}",
                running.worker,
                job.attempt,
                job.max_attempts,
                self.at(running.until)
            );
            self.add("running", text);
            if let Some(line) = job.notes.log.last().filter(|line| line.attempt == job.attempt) {
                self.add("log", format!("the run reported last: {}", line.text));
            }
            if is_last_chance(job.expired_leases) {
                let text = format!(
                    "after {} in a row, the job runs apart from others like it: if some run in its worker, it is held there for some seconds, \
                     and then given back",
                    self.words.counted(job.expired_leases, "expired lease")
                );
                self.add(LAST_CHANCE, text);
            }
            if running.until <= self.now {
                self.add(
                    "lease_over",
                    "its lease has expired; the next reserve of its queue reclaims the job. Without a worker, upkeep or a cancel does, one minute later",
                );
            }
        }
        if job.cancel_requested {
            self.add(
                "cancel_requested",
                "a cancel was requested; the worker gets the request at its next heartbeat",
            );
        }
    }

    fn dead(&mut self) {
        let job = self.job;
        let why = match job.reason.as_deref() {
            Some("attempts") if job.max_attempts == 1 => "its only attempt failed".to_owned(),
            Some("attempts") => format!("all {} attempts failed", job.max_attempts),
            Some("crashes") => {
                "the job is dead: its lease expired too often in a row, because its workers died".to_owned()
            }
            Some("snoozes") => "the job is dead: it was snoozed too often".to_owned(),
            Some("corrupt") => "the job is dead: its record cannot be read".to_owned(),
            Some(reason) => format!("the job is dead: {reason}"),
            None => "the job is dead".to_owned(),
        };
        self.ended("dead", &why);
        let last = job.failures.last().map(|failure| failure.error.as_str());
        self.last_failure(last != job.reason.as_deref());
    }

    fn ended(&mut self, code: &'static str, why: &str) {
        let when = self.job.finished_at.map(|at| format!(", {}", self.at(at))).unwrap_or_default();
        self.add(code, format!("{why}{when}"));
    }
}

/// Why a queue or a group starts nothing for a while.
const fn pause(has_rate: bool) -> &'static str {
    if has_rate {
        "because of its rate, or because a run asked for a pause"
    } else {
        "because a run asked for a pause"
    }
}
