//! Whether histories meet what they are meant to meet: a generator that stopped handing in stale leases would still agree
//! with everything.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
};

use punctual::{
    ErrorKind, JobId, State,
    store::{
        Acted, Batch, BoardAct, BoardReply, DocOp, DocReply, Enqueued, LeaseStatus, LimitRule, LockReply,
        QueueOp, QueueReply, Settled, ToolOp, ToolReply,
    },
    toolkit::Allowance,
};

use crate::{
    op::Op,
    reach,
    side::{Reply, Seen},
};

/// What must come up, and does not come by itself; how often at least in 300 histories. An event of a job counts once in a history.
pub(crate) const EVENTS: [(&str, u32); 57] = [
    ("duplicate of a live job", 350),
    ("duplicate of a job that is gone", 550),
    ("an id came back", 20),
    ("replaced", 20),
    ("rescheduled", 25),
    ("full", 35),
    ("invalid", 80),
    ("too large", 6),
    ("lease reclaimed", 200),
    ("32 leases reclaimed", 8),
    ("two expired leases in a row", 150),
    ("dead of crashes", 20),
    ("dead of attempts", 9),
    ("expired", 3900),
    ("more", 550),
    ("more, and nothing found", 90),
    ("repeated reserve finds its jobs", 100),
    ("settle of a lost lease", 850),
    ("extend of a lost lease", 100),
    ("cancel requested", 150),
    ("cancelled at the end of its run", 60),
    ("wrong state", 850),
    ("unique conflict", 10),
    ("purged", 10),
    ("swept", 65),
    ("taken", 50),
    ("document changed", 700),
    ("document removed", 100),
    ("document of another version", 700),
    ("page of documents cut", 20),
    ("a log refused", 300),
    ("a log of refused calls refused", 100),
    ("a long log refused", 35),
    ("a rate refused", 700),
    ("a lock acquired", 950),
    ("a lock taken", 1050),
    ("a lock released", 100),
    ("a lock that is free", 550),
    ("added to a board", 1150),
    ("added several to a board", 650),
    ("not on a board behind an add", 150),
    ("a window of several members", 200),
    ("a score out of bounds", 15),
    ("three groups in one batch", 100),
    ("a job behind its group", 450),
    ("a limiter closed by a run", 100),
    ("more groups wait than one call lets in", 45),
    ("two handles", 50),
    ("workers apart from instances", 850),
    ("a job behind its key", 100),
    ("a job behind its queue", 550),
    ("a unique key met its holder", 150),
    ("the clock went back", 45),
    ("settings replaced", 150),
    ("settings of another version", 85),
    ("a limiter opened by hand", 10),
    ("a limiter of a group opened by hand", 150),
];

/// Of what rules meet in one history: each two of them must in so many of 300 histories at least.
const MEETING: [&str; 9] = [
    "two handles",
    "workers apart from instances",
    "a job behind its key",
    "a job behind its group",
    "a job behind its queue",
    "a unique key met its holder",
    "lease reclaimed",
    "the clock went back",
    "settings replaced",
];
const MEETINGS_MIN: u32 = 4;

/// Fewer histories than these need not meet everything.
const JUDGED_FROM: u32 = 100;
/// Nor have everything meet.
const PAIRS_JUDGED_FROM: u32 = 300;

/// Counts over many histories.
#[derive(Default)]
pub(crate) struct Tally {
    histories: u32,
    seen: BTreeMap<&'static str, u32>,
    /// In how many histories two events came up.
    met: BTreeMap<(&'static str, &'static str), u32>,
    /// How often each thing was asked for: see `reach.rs`.
    asked: BTreeMap<String, u32>,
    /// Of the history at hand.
    inserted: HashSet<JobId>,
    leases: HashSet<(JobId, u64)>,
    once: HashSet<(&'static str, JobId)>,
    /// Queues whose limiters were seen closed.
    closed: HashSet<String>,
    events: BTreeSet<&'static str>,
}

impl Tally {
    pub(crate) fn begin(&mut self, handles: usize) {
        self.inserted.clear();
        self.leases.clear();
        self.once.clear();
        self.closed.clear();
        self.events.clear();
        self.add("two handles", handles == 2);
    }

    /// The history at hand is over.
    pub(crate) fn end(&mut self) {
        self.histories += 1;
        for (i, &one) in MEETING.iter().enumerate() {
            for &other in MEETING[..i].iter().filter(|other| self.events.contains(*other)) {
                *self.met.entry((other, one)).or_default() += u32::from(self.events.contains(one));
            }
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.histories += other.histories;
        other.seen.into_iter().for_each(|(event, n)| *self.seen.entry(event).or_default() += n);
        other.met.into_iter().for_each(|(two, n)| *self.met.entry(two).or_default() += n);
        other.asked.into_iter().for_each(|(what, n)| *self.asked.entry(what).or_default() += n);
    }

    /// How often something was asked for.
    pub(crate) fn asked(&self, what: &str) -> u32 {
        self.asked.get(what).copied().unwrap_or(0)
    }

    fn of(&self, event: &str) -> u32 {
        self.seen.get(event).copied().unwrap_or(0)
    }

    fn add(&mut self, event: &'static str, happened: bool) {
        assert!(EVENTS.iter().any(|(known, _)| *known == event), "{event} is not in the list");
        if happened {
            *self.seen.entry(event).or_default() += 1;
            self.events.insert(event);
        }
    }

    /// Something that stays so for a while, and is looked at again and again: counted once.
    fn add_once(&mut self, event: &'static str, of: JobId, happened: bool) {
        let is_new = happened && self.once.insert((event, of));
        self.add(event, is_new);
    }

    /// What must come up came up often enough, for as many histories as there were.
    #[track_caller]
    pub(crate) fn check(&self, store: &str) {
        if self.histories < JUDGED_FROM {
            return;
        }
        let enough = |n: u32, of_300: u32| of_300 * self.histories <= n * 300;
        let rare: Vec<_> = EVENTS.iter().filter(|(event, least)| !enough(self.of(event), *least)).collect();
        let twos = MEETING.iter().enumerate();
        let twos = twos.take(if self.histories < PAIRS_JUDGED_FROM { 0 } else { MEETING.len() });
        let apart: Vec<_> = twos
            .flat_map(|(i, &one)| MEETING[..i].iter().map(move |&other| (other, one)))
            .filter(|two| !enough(self.met.get(two).copied().unwrap_or(0), MEETINGS_MIN))
            .collect();
        assert!(
            rare.is_empty() && apart.is_empty(),
            "{store}: too rare in {} histories: {rare:?}; seldom together: {apart:?}\n{self}",
            self.histories
        );
    }

    pub(crate) fn note(&mut self, op: &Op, reply: &Reply) {
        reach::asked(op, |what| *self.asked.entry(what).or_default() += 1);
        match op {
            Op::Clock(by) => self.add("the clock went back", *by < 0),
            Op::Reserve(want) => {
                let is_apart = !want.worker.ends_with(&(want.call.instance - 80).to_string());
                self.add("workers apart from instances", is_apart);
            }
            Op::Queue(_, QueueOp::Replace(replace)) => {
                if let Reply::Queue(Ok(QueueReply::Info(_))) = reply {
                    self.add("settings replaced", replace.seen != replace.new);
                }
                let is_other = matches!(reply, Reply::Queue(Ok(QueueReply::Conflict(_))));
                self.add("settings of another version", is_other);
            }
            Op::Queue(name, op @ (QueueOp::Show | QueueOp::Open { .. })) => {
                let Reply::Queue(Ok(QueueReply::Info(info))) = reply else { return };
                let was_closed = self.closed.remove(name) && matches!(op, QueueOp::Open { group: None });
                self.add("a limiter opened by hand", was_closed && info.opens_at.is_none());
                self.add(
                    "a limiter of a group opened by hand",
                    matches!(op, QueueOp::Open { group: Some(_) }),
                );
                if info.opens_at.is_some() {
                    self.closed.insert(name.clone());
                }
            }
            _ => {}
        }
        match reply {
            Reply::Enqueue(Ok(answers)) => {
                let Op::Enqueue(_, jobs) = op else { return };
                for (job, answer) in jobs.iter().zip(answers) {
                    self.enqueued(answer);
                    let met = match answer {
                        Enqueued::Duplicate(existing) => existing.id != job.id,
                        other => matches!(other, Enqueued::Replaced { .. } | Enqueued::Rescheduled { .. }),
                    };
                    self.add("a unique key met its holder", met);
                }
            }
            Reply::Enqueue(Err(kind)) => {
                self.add("invalid", *kind == ErrorKind::Invalid);
                self.add("too large", *kind == ErrorKind::TooLarge);
            }
            Reply::Reserve(Ok(batch)) => {
                let Op::Reserve(want) = op else { return };
                let looked = 0 < want.n && batch.jobs.is_empty();
                self.add("more, and nothing found", looked && batch.more && batch.reclaimed.is_empty());
                self.batch(batch);
            }
            Reply::Extend(Ok(answers)) => {
                self.add("extend of a lost lease", answers.contains(&LeaseStatus::Lost));
            }
            Reply::Settle(Ok((answers, batch))) => {
                self.add("settle of a lost lease", answers.contains(&Settled::LeaseLost));
                let Op::Settle(runs, _) = op else { return };
                for ((_, verdict), answer) in runs.iter().zip(answers) {
                    let closes = matches!(verdict, punctual::store::Verdict::RetryAfter { .. });
                    self.add("a limiter closed by a run", closes && matches!(answer, Settled::Settled(..)));
                    let was_asked = !matches!(verdict, punctual::store::Verdict::Cancel { .. });
                    let cancelled = matches!(answer, Settled::Settled(State::Cancelled, _));
                    self.add("cancelled at the end of its run", was_asked && cancelled);
                }
                if let Some(batch) = batch {
                    self.batch(batch);
                }
            }
            Reply::Doc(Ok(reply)) => {
                let Op::Doc(op) = op else { return };
                let is_put = matches!(op, DocOp::Put { .. });
                self.add("document changed", is_put && matches!(reply, DocReply::Is(Some(_))));
                self.add(
                    "document removed",
                    matches!((op, reply), (DocOp::Remove { .. }, DocReply::Is(None))),
                );
                self.add("document of another version", matches!(reply, DocReply::Conflict(_)));
                self.add("page of documents cut", matches!(reply, DocReply::Page { more: true, .. }));
            }
            Reply::Tool(Ok(reply)) => self.tool(op, reply),
            Reply::Tool(Err(_)) => {
                self.add(
                    "a score out of bounds",
                    matches!(op, Op::Tool(ToolOp::Board(op)) if op.check().is_ok()),
                );
            }
            Reply::Take(Ok(jobs)) => self.add("taken", !jobs.is_empty()),
            Reply::Act(Ok(answers)) => {
                for answer in answers {
                    self.add("cancel requested", matches!(answer, Acted::Requested(_)));
                    self.add("wrong state", matches!(answer, Acted::WrongState(..)));
                    self.add("unique conflict", matches!(answer, Acted::UniqueConflict(_)));
                }
            }
            Reply::Queue(Ok(QueueReply::Purged { deleted, .. })) => {
                self.add("purged", 0 < *deleted);
            }
            Reply::Sweep(Ok(swept)) => self.add("swept", 0 < swept.expired + swept.removed + swept.forgotten),
            Reply::Look(seen) => {
                for (_, seen) in seen {
                    if let Seen::Jobs(jobs) = seen {
                        for job in jobs {
                            let (id, reason) = (job.id, job.reason.as_deref());
                            self.add_once("expired", id, reason == Some("expired"));
                            self.add_once("dead of crashes", id, reason == Some("crashes"));
                            self.add_once("dead of attempts", id, reason == Some("attempts"));
                            self.add_once("two expired leases in a row", id, 2 <= job.expired_leases);
                            let (group, key) = (job.group.is_some(), job.concurrency.is_some());
                            self.add_once("a job behind its group", id, group && !key && job.blocked);
                            self.add_once("a job behind its key", id, key && job.blocked);
                            self.add_once("a job behind its queue", id, !group && !key && job.blocked);
                        }
                        let waiting = jobs.iter().filter(|job| job.state == State::Waiting);
                        let groups: HashSet<_> = waiting.filter_map(|job| job.group.as_ref()).collect();
                        self.add("more groups wait than one call lets in", 40 < groups.len());
                    }
                }
            }
            _ => {}
        }
    }

    fn enqueued(&mut self, answer: &Enqueued) {
        match answer {
            Enqueued::Inserted { id, .. } => {
                let again = !self.inserted.insert(*id);
                self.add("an id came back", again);
            }
            Enqueued::Duplicate(existing) => {
                self.add("duplicate of a live job", existing.state.is_some_and(|state| !state.is_ended()));
                self.add("duplicate of a job that is gone", existing.state.is_none());
            }
            Enqueued::Replaced { .. } => self.add("replaced", true),
            Enqueued::Rescheduled { .. } => self.add("rescheduled", true),
            Enqueued::Full => self.add("full", true),
            // The histories derive ids from the job's own queue. The conformance cases have ids of another one.
            Enqueued::Conflict { .. } => {}
        }
    }

    fn tool(&mut self, op: &Op, reply: &ToolReply) {
        match (op, reply) {
            (Op::Tool(ToolOp::Limit(op)), ToolReply::Limit(Allowance::RetryAfter(_))) => match op.rule {
                LimitRule::Log { max, counts_refused, .. } => {
                    self.add("a log refused", !counts_refused);
                    self.add("a log of refused calls refused", counts_refused);
                    self.add("a long log refused", 160 < max);
                }
                LimitRule::Gcra { .. } => self.add("a rate refused", true),
            },
            (Op::Tool(ToolOp::Board(op)), ToolReply::Board(said)) => {
                let is_add = matches!(op.act, BoardAct::Add { .. });
                self.add("added to a board", is_add && matches!(said, BoardReply::Score(Some(_))));
                self.add("not on a board behind an add", is_add && *said == BoardReply::Score(None));
                let is_of_several = matches!(op.act, BoardAct::AddAll { .. });
                self.add("added several to a board", is_of_several);
                let has_several = matches!(said, BoardReply::Standings(all) if 1 < all.len());
                self.add("a window of several members", op.window.is_some() && has_several);
            }
            (_, ToolReply::Lock(said)) => {
                self.add("a lock acquired", matches!(said, LockReply::Yours(_)));
                self.add("a lock taken", matches!(said, LockReply::Taken(_)));
                self.add("a lock released", matches!(said, LockReply::Released));
                self.add("a lock that is free", matches!(said, LockReply::Free));
            }
            _ => {}
        }
    }

    fn batch(&mut self, batch: &Batch) {
        self.add("lease reclaimed", !batch.reclaimed.is_empty());
        self.add("32 leases reclaimed", batch.reclaimed.len() == 32);
        self.add("more", batch.more);
        let groups: HashSet<_> = batch.jobs.iter().filter_map(|job| job.job.group.as_ref()).collect();
        self.add("three groups in one batch", 3 <= groups.len());
        for reserved in &batch.jobs {
            let again = !self.leases.insert((reserved.lease.job, reserved.lease.fence));
            self.add("repeated reserve finds its jobs", again);
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} histories", self.histories)?;
        for (event, least) in EVENTS {
            writeln!(f, "{:6} of {least:4}  {event}", self.of(event))?;
        }
        for ((one, other), n) in &self.met {
            writeln!(f, "{n:6} of {MEETINGS_MIN:4}  {one} + {other}")?;
        }
        Ok(())
    }
}
