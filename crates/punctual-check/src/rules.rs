//! The judge: every rule over every job, then the rules that compare jobs.
//!
//! A rule speaks only where the history leaves no other explanation: calls overlap, answers get lost, processes die. So a
//! violation is one, and a history with many lost answers proves less than one with few.

mod control;
mod count;
mod delivery;
mod lease;
mod limits;
mod link;
mod live;
mod tail;
mod time;

use std::time::Duration;

use crate::{
    history::History,
    replay::{Replay, replay},
    verdict::{Lateness, Verdict, Word},
};

/// How to judge.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether the store's clock runs like the referee's: elapsed time is compared. `false` for a clock turned by hand.
    pub referee: bool,
    /// How old answers may be that are lost with a killed server; zero: none may.
    pub undone_max: Duration,
    /// How long a due job may wait while a slot is free and no harm is done, or a lapsed lease until it is reclaimed;
    /// `None`: that is not judged.
    pub start_within: Option<Duration>,
    /// How long a run may continue after its cancel was requested, while no harm is done to its process. That is the time until
    /// its worker hears of it, and the longest grace period of that worker. `None`: that is not judged.
    pub cancel_within: Option<Duration>,
    /// Whether each job is replayed in the model (M). Needs a store whose clock runs like the referee's.
    pub replays: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            referee: true,
            undone_max: Duration::ZERO,
            start_within: None,
            cancel_within: None,
            replays: false,
        }
    }
}

/// Judges a history.
pub fn judge(history: &History, options: Options) -> Verdict {
    let mut verdict = Verdict {
        events: history.events,
        files: history.files,
        torn: history.torn,
        kills: history.kills,
        server_kills: history.server_kills.len() as u64,
        frozen: history.frozen,
        harmed: history.harmed,
        stalls: history.stalls.len() as u64,
        hits: history.hits,
        ..Verdict::default()
    };
    let referee = options.referee && !history.clock_stepped();
    let tails = tail::Tails::new(history, options.undone_max);
    let mut late = Vec::new();
    let mut holds = Vec::new();
    let mut limited = limits::Limited::default();
    let mut waits = Vec::new();
    for story in history.stories() {
        let links = link::links(&story, history, &tails, referee);
        let is_shaken = tails.shake(&story);
        delivery::judge(&story, history, &links, &tails, &mut verdict);
        lease::judge(&story, history, &links, referee, is_shaken, &mut verdict);
        count::judge(&story, history, &links, &mut verdict);
        time::judge(&story, history, &links, referee, &mut verdict);
        if !is_shaken {
            control::judge(
                &story,
                history,
                referee,
                options.cancel_within.filter(|_| options.referee),
                &mut verdict,
            );
            holds.extend(control::hold(&story, history, referee));
            limited.add(&story, history, referee);
        }
        live::at_rest(&story, history, &mut verdict);
        if options.replays && referee {
            match replay(&story, history, is_shaken || tails.shake_told(&story)) {
                Replay::Fits => verdict.replayed.fits += 1,
                Replay::Unclear => verdict.replayed.unclear += 1,
                Replay::Differs(how) => {
                    verdict.replayed.differs += 1;
                    verdict.broken("M", Some(story.id), || how);
                }
            }
        }
        waits.extend(live::waits(&story, history, &links));
        late.extend(time::lateness(&story));
    }
    control::judge_holds(history, holds, &mut verdict);
    limited.judge(history, &mut verdict);
    delivery::judge_all(history, options.referee, &mut verdict);
    if let Some(within) = options.start_within.filter(|_| options.referee) {
        live::judge_all(history, waits, within, &mut verdict);
    }

    verdict.lateness_ms = Lateness::of(late);
    verdict.lost = verdict.count("D1");
    verdict.unexpected = verdict.count("D2");
    verdict.early = verdict.count("T1");
    verdict.fence_regressions = verdict.count("F1");
    verdict.overlaps = verdict.count("D6");
    verdict.verdict = if !verdict.rules.is_empty() {
        Word::Invalid
    } else if verdict.acked == 0 || !history.dump_complete {
        Word::Vacuous
    } else {
        Word::Valid
    };
    verdict
}
