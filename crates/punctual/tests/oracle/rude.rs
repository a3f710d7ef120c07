//! Whether histories meet what they are meant to meet: a generator that stopped handing in stale leases would still agree
//! with everything.

use std::collections::{BTreeMap, HashSet};

use punctual::{
    ErrorKind, JobId, State,
    store::{
        Acted, Allowance, Batch, BoardAct, BoardReply, DocOp, DocReply, Enqueued, LeaseStatus, LimitRule,
        LockReply, Settled, ToolOp, ToolReply,
    },
};

use crate::{
    op::Op,
    side::{Reply, Seen},
};

/// What must come up, and does not come by itself.
pub(crate) const EVENTS: [&str; 47] = [
    "duplicate of a live job",
    "duplicate of a job that is gone",
    "an id came back",
    "replaced",
    "rescheduled",
    "full",
    "invalid",
    "too large",
    "lease taken back",
    "32 leases taken back",
    "two crashes in a row",
    "dead of crashes",
    "dead of attempts",
    "expired",
    "more",
    "more, and nothing found",
    "repeated reserve finds its jobs",
    "settle of a lost lease",
    "extend of a lost lease",
    "cancel requested",
    "cancelled at the end of its run",
    "wrong state",
    "unique conflict",
    "purged",
    "swept",
    "taken",
    "document changed",
    "document removed",
    "document of another version",
    "page of documents cut",
    "a log refused",
    "a log of refused calls refused",
    "a long log refused",
    "a rate refused",
    "a lock acquired",
    "a lock taken",
    "a lock released",
    "a lock that is free",
    "added to a board",
    "added several to a board",
    "not on a board behind an add",
    "a window of several members",
    "a score out of bounds",
    "three groups in one batch",
    "a job behind its group",
    "a gate closed by a run",
    "more groups wait than one call lets in",
];

/// Counts over many histories.
#[derive(Default)]
pub(crate) struct Tally {
    seen: BTreeMap<&'static str, u32>,
    /// Of the history at hand.
    inserted: HashSet<JobId>,
    leases: HashSet<(JobId, u64)>,
}

impl Tally {
    pub(crate) fn begin(&mut self) {
        self.inserted.clear();
        self.leases.clear();
    }

    pub(crate) fn of(&self, event: &str) -> u32 {
        self.seen.get(event).copied().unwrap_or(0)
    }

    fn add(&mut self, event: &'static str, happened: bool) {
        assert!(EVENTS.contains(&event), "{event} is not in the list");
        *self.seen.entry(event).or_default() += u32::from(happened);
    }

    pub(crate) fn note(&mut self, op: &Op, reply: &Reply) {
        match reply {
            Reply::Enqueue(Ok(answers)) => answers.iter().for_each(|answer| self.enqueued(answer)),
            Reply::Enqueue(Err(kind)) => {
                self.add("invalid", *kind == ErrorKind::Invalid);
                self.add("too large", *kind == ErrorKind::TooLarge);
            }
            Reply::Reserve(Ok(batch)) => {
                let Op::Reserve(want) = op else { return };
                let looked = 0 < want.n && batch.jobs.is_empty();
                self.add("more, and nothing found", looked && batch.more && batch.taken_back.is_empty());
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
                    self.add("a gate closed by a run", closes && matches!(answer, Settled::Settled(_)));
                    let was_asked = !matches!(verdict, punctual::store::Verdict::Cancel { .. });
                    let cancelled = *answer == Settled::Settled(State::Cancelled);
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
            Reply::Queue(Ok(punctual::store::QueueReply::Purged { deleted, .. })) => {
                self.add("purged", 0 < *deleted);
            }
            Reply::Sweep(Ok(swept)) => self.add("swept", 0 < swept.expired + swept.removed + swept.forgotten),
            Reply::Look(seen) => {
                for (_, seen) in seen {
                    if let Seen::Jobs(jobs) = seen {
                        for job in jobs {
                            let reason = job.reason.as_deref();
                            self.add("expired", reason == Some("expired"));
                            self.add("dead of crashes", reason == Some("crashes"));
                            self.add("dead of attempts", reason == Some("attempts"));
                            self.add("two crashes in a row", 2 <= job.crashes);
                            let is_of_group = job.group.is_some() && job.concurrency.is_none();
                            self.add("a job behind its group", is_of_group && job.blocked);
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
        self.add("lease taken back", !batch.taken_back.is_empty());
        self.add("32 leases taken back", batch.taken_back.len() == 32);
        self.add("more", batch.more);
        let groups: HashSet<_> = batch.jobs.iter().filter_map(|job| job.job.group.as_ref()).collect();
        self.add("three groups in one batch", 3 <= groups.len());
        for reserved in &batch.jobs {
            let again = !self.leases.insert((reserved.lease.job, reserved.lease.fence));
            self.add("repeated reserve finds its jobs", again);
        }
    }
}
