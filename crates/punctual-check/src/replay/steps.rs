//! The calls of one job, as steps that the search puts into an order.

use crate::{
    event::Due,
    history::{Act, Back, End, Fate, History, NEVER, Run, Span, Story, Sure, Told},
};

/// The most steps of one job that are replayed: one bit each in [`Place::done`](super::place::Place).
const STEPS_MAX: usize = u128::BITS as usize;

/// One call, as far as it met the job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub(super) span: Span,
    pub(super) what: What<'a>,
    /// It was answered, so it happened.
    pub(super) is_sure: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What<'a> {
    Enqueue {
        created_at: Option<u64>,
        run_at: Option<u64>,
    },
    Reserve(&'a Run),
    /// A reservation whose answer was lost: known by the number that was reclaimed later.
    Unseen(&'a Back),
    Reclaim(&'a Back),
    Settle(&'a End),
    Held(&'a Told),
    Lost(&'a Told),
    /// A heartbeat that reported company.
    Company(u64),
    Act(&'a Act),
}

/// Lists the steps of a job; `None` if they are too many, or the job was never there.
pub(super) fn steps<'a>(story: &Story<'a>, history: &History) -> Option<Vec<Step<'a>>> {
    let mut steps = vec![enqueue(story)?];
    let mut add = |span, is_sure, what| steps.push(Step { span, what, is_sure });
    for run in story.runs {
        add(run.span, true, What::Reserve(run));
        if history.company.contains(&(story.job, run.row.fence)) {
            add(Span { to: NEVER, ..run.span }, false, What::Company(run.row.fence));
        }
    }
    for back in story.backs {
        if story.runs.iter().all(|run| run.row.fence != back.fence) {
            let span = Span { from: 0, to: back.span.to };
            add(span, true, What::Unseen(back));
        }
        add(back.span, true, What::Reclaim(back));
    }
    story.ends.iter().for_each(|end| add(end.span, end.state.is_some(), What::Settle(end)));
    story.held.iter().for_each(|told| add(told.span, true, What::Held(told)));
    story.lost.iter().for_each(|told| add(told.span, true, What::Lost(told)));
    story.acts.iter().for_each(|act| add(act.span, act.sure != Sure::Unknown, What::Act(act)));
    steps[1..].sort_by_key(|step| step.span.from);
    (steps.len() <= STEPS_MAX).then_some(steps)
}

/// The step that made the job: of several tries, only one did.
fn enqueue<'a>(story: &Story<'a>) -> Option<Step<'a>> {
    let tries = || story.tries.iter().filter(|t| t.fate != Fate::Refused);
    let from = tries().map(|t| t.span.from).min()?;
    let inserted = tries().find_map(|t| match t.fate {
        Fate::Inserted { run_at } => Some((t, run_at)),
        _ => None,
    });
    let seen = story.runs.first().map(|run| &run.row);
    let answered = tries().filter(|t| t.fate != Fate::Unknown).map(|t| t.span.to).min();
    let to = answered.into_iter().chain(story.runs.first().map(|run| run.span.to)).min()?;
    let run_at = inserted.map(|(_, run_at)| run_at);
    let created_at = seen.map(|row| row.created_at).or_else(|| {
        let (t, run_at) = inserted?;
        match t.due {
            Due::Now => Some(run_at),
            Due::In(ms) => run_at.checked_sub(ms),
            Due::At(_) => None,
        }
    });
    Some(Step { span: Span { from, to }, what: What::Enqueue { created_at, run_at }, is_sure: true })
}

impl What<'_> {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Enqueue { .. } => "enqueue".to_owned(),
            Self::Reserve(run) => format!("reserve {} (attempt {})", run.row.fence, run.row.attempt),
            Self::Unseen(back) => format!("a reserve {} without an answer", back.fence),
            Self::Reclaim(back) => format!("reclaim {} ({})", back.fence, back.state),
            Self::Settle(end) => format!("settle {} ({:?}, {:?})", end.fence, end.said, end.state),
            Self::Held(told) => format!("extend {} (held)", told.fence),
            Self::Lost(told) => format!("lease {} is lost", told.fence),
            Self::Company(fence) => format!("company of {fence}"),
            Self::Act(act) => format!("{:?} ({:?})", act.deed, act.sure),
        }
    }
}
