//! The judge: every rule over every job, then the rules that compare jobs.
//!
//! A rule speaks only where the history leaves no other explanation: calls overlap, answers get lost, processes die. So a
//! violation is one, and a history with many lost answers proves less than one with few.

mod control;
mod count;
mod delivery;
mod lease;
mod link;
mod time;

use crate::{
    history::History,
    verdict::{Lateness, Verdict, Word},
};

/// How to judge.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether the store's clock runs like the referee's: elapsed time is compared. `false` for a clock turned by hand.
    pub referee: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { referee: true }
    }
}

/// Judges a history.
pub fn judge(history: &History, options: Options) -> Verdict {
    let mut verdict = Verdict {
        events: history.events,
        files: history.files,
        torn: history.torn,
        kills: history.kills,
        ..Verdict::default()
    };
    let referee = options.referee && !history.clock_stepped;
    let mut late = Vec::new();
    let mut holds = Vec::new();
    for story in history.stories() {
        let links = link::links(&story, history);
        delivery::judge(&story, history, &links, &mut verdict);
        lease::judge(&story, history, &links, &mut verdict);
        count::judge(&story, history, &links, &mut verdict);
        time::judge(&story, history, &links, referee, &mut verdict);
        control::judge(&story, history, &mut verdict);
        holds.extend(control::hold(&story, history, referee));
        late.extend(time::lateness(&story));
    }
    control::judge_holds(history, holds, &mut verdict);
    delivery::judge_all(history, &mut verdict);

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
