//! The core rules once more, written as slowly and plainly as can be: every line against every line. Shares only the
//! format with the judge.

use std::collections::BTreeSet;

use punctual::{JobId, State};
use punctual_check::event::{Accepted, Answer, Deed, Effect, Line, Op, Reservation, What};

/// Jobs that break each core rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Core {
    pub(crate) lost: BTreeSet<JobId>,
    pub(crate) ghosts: BTreeSet<JobId>,
    pub(crate) early: BTreeSet<JobId>,
    pub(crate) overlaps: BTreeSet<JobId>,
    pub(crate) fences: BTreeSet<JobId>,
}

/// A call with its answer; without one, `to` is when its process was gone.
struct Call<'a> {
    from: u64,
    to: u64,
    op: &'a Op,
    answer: Option<&'a Answer>,
}

/// Finds what breaks the core rules. For histories without takes, purges and expiry.
pub(crate) fn core(files: &[Vec<Line>]) -> Core {
    let calls = calls(files);
    let mut out = Core::default();
    let every = || files.iter().flatten();
    let ids: BTreeSet<JobId> = calls.iter().flat_map(wanted).collect();
    for &id in &ids {
        let acked = calls.iter().any(|call| accepted(call, id));
        let at_rest = every().any(|line| match &line.what {
            What::Dump { jobs, .. } => jobs.iter().any(|job| job.id == id),
            _ => false,
        });
        if acked && !at_rest && !calls.iter().any(|call| ends(call, id)) {
            out.lost.insert(id);
        }
    }
    let runs: Vec<(&Call<'_>, u64, &Reservation)> = calls
        .iter()
        .filter_map(|call| match call.answer {
            Some(Answer::Reserve(answer)) => Some((call, answer)),
            _ => None,
        })
        .flat_map(|(call, answer)| answer.jobs.iter().map(move |row| (call, answer.now, row)))
        .collect();
    for (call, now, row) in &runs {
        if !ids.contains(&row.id) {
            out.ghosts.insert(row.id);
        }
        if *now < row.run_at {
            out.early.insert(row.id);
        }
        for (other, _, newer) in runs.iter().filter(|(_, _, newer)| newer.id == row.id) {
            if call.to < other.from && newer.fence <= row.fence {
                out.fences.insert(row.id);
            }
            if newer.fence <= row.fence {
                continue;
            }
            // Somebody was told that the older lease stands, after the newer one was handed out.
            if calls.iter().any(|told| other.to < told.from && stands(told, row)) {
                out.overlaps.insert(row.id);
            }
            // The older lease had not ended, and no unanswered call may have ended it.
            let next =
                runs.iter().filter(|r| r.2.id == row.id && row.fence < r.2.fence).map(|r| r.2.fence).min();
            let may_end = |c: &&Call<'_>| c.from < other.to && call.from < c.to;
            let ended = calls.iter().any(|c| lease_ended(c, row))
                || calls
                    .iter()
                    .filter(may_end)
                    .any(|c| c.answer.is_none() && (is_reserve(c) || settles(c, row)))
                || calls.iter().filter(may_end).any(|c| retries(c, row.id));
            if next == Some(newer.fence) && !ended {
                out.overlaps.insert(row.id);
            }
        }
    }
    out
}

fn calls(files: &[Vec<Line>]) -> Vec<Call<'_>> {
    let killed = |name: &str| {
        files.iter().flatten().find_map(|line| match &line.what {
            What::Killed { proc } if proc == name => Some(line.m),
            _ => None,
        })
    };
    let mut calls = Vec::new();
    for file in files {
        let Some(What::Open { proc, .. }) = file.first().map(|line| &line.what) else { continue };
        for line in file {
            let What::Invoke(op) = &line.what else { continue };
            let reply = file.iter().find(|other| other.n == line.n && !matches!(other.what, What::Invoke(_)));
            match reply.map(|reply| (reply.m, &reply.what)) {
                Some((to, What::Ok(answer))) => {
                    calls.push(Call { from: line.m, to, op, answer: Some(answer) });
                }
                Some((to, What::Fail(_))) if matches!(op, Op::Enqueue { .. }) => {
                    calls.push(Call { from: line.m, to, op, answer: Some(&Answer::Purge) });
                }
                Some((_, What::Fail(_))) => {}
                _ => {
                    calls.push(Call { from: line.m, to: killed(proc).unwrap_or(u64::MAX), op, answer: None });
                }
            }
        }
    }
    calls
}

fn wanted(call: &Call<'_>) -> Vec<JobId> {
    match call.op {
        Op::Enqueue { jobs, .. } => jobs.iter().map(|job| job.id).collect(),
        _ => vec![],
    }
}

fn accepted(call: &Call<'_>, id: JobId) -> bool {
    let (Op::Enqueue { jobs, .. }, Some(Answer::Enqueue(answers))) = (call.op, call.answer) else {
        return false;
    };
    jobs.iter().zip(answers).any(|(job, answer)| {
        job.id == id
            && match answer {
                Accepted::Inserted { .. } => true,
                Accepted::Duplicate(other) => *other == id,
                _ => false,
            }
    })
}

/// Whether the job ended by this call, or may have.
fn ends(call: &Call<'_>, id: JobId) -> bool {
    match (call.op, call.answer) {
        (Op::Settle { runs, .. }, Some(Answer::Settle { states, away, .. })) => {
            runs.iter().zip(states).enumerate().any(|(at, (run, state))| {
                run.id == id && (away.contains(&at) || state.is_some_and(State::is_ended))
            })
        }
        (Op::Settle { runs, .. }, None) => runs.iter().any(|run| run.id == id),
        (Op::Reserve { .. }, Some(Answer::Reserve(answer))) => {
            answer.reclaimed.iter().any(|(lease, state)| lease.0 == id && state.is_ended())
        }
        (Op::Act { deed: Deed::Cancel | Deed::Delete, .. }, Some(Answer::Act(effects))) => {
            effects.contains(&Effect::Done(id))
        }
        (Op::Act { deed: Deed::Cancel | Deed::Delete, targets }, None) => targets.contains(&Some(id)),
        _ => false,
    }
}

/// Whether this call was told that the lease stands.
fn stands(call: &Call<'_>, row: &Reservation) -> bool {
    match (call.op, call.answer) {
        (Op::Extend { leases, .. }, Some(Answer::Extend(held))) => leases
            .iter()
            .zip(held)
            .any(|(lease, held)| *held == Some(true) && (lease.0, lease.1) == (row.id, row.fence)),
        (Op::Settle { runs, .. }, Some(Answer::Settle { states, .. })) => runs
            .iter()
            .zip(states)
            .any(|(run, state)| state.is_some() && (run.id, run.fence) == (row.id, row.fence)),
        _ => false,
    }
}

fn lease_ended(call: &Call<'_>, row: &Reservation) -> bool {
    match call.answer {
        Some(Answer::Reserve(answer)) => {
            answer.reclaimed.iter().any(|(lease, _)| (lease.0, lease.1) == (row.id, row.fence))
        }
        Some(Answer::Settle { .. }) => stands(call, row),
        _ => false,
    }
}

fn is_reserve(call: &Call<'_>) -> bool {
    matches!(call.op, Op::Reserve { .. })
}

fn settles(call: &Call<'_>, row: &Reservation) -> bool {
    matches!(call.op, Op::Settle { runs, .. } if runs.iter().any(|run| (run.id, run.fence) == (row.id, row.fence)))
}

fn retries(call: &Call<'_>, id: JobId) -> bool {
    match (call.op, call.answer) {
        (Op::Act { deed: Deed::Retry, .. }, Some(Answer::Act(effects))) => {
            effects.contains(&Effect::Done(id))
        }
        (Op::Act { deed: Deed::Retry, targets }, None) => targets.contains(&Some(id)),
        _ => false,
    }
}
