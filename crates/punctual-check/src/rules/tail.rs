//! What a store that is `fast` may lose with its server: answers of the last moments before a kill. What they told is
//! counted where it didn't come true, and is no violation then; everything older is judged as ever.

use std::time::Duration;

use crate::history::{Fate, History, Span, Spans, Story, Sure, Try};

/// The stretches of time whose answers may be undone.
#[derive(Debug, Default)]
pub(super) struct Tails(Spans);

impl Tails {
    /// Of so long before each kill. None at all for zero: then no answer may be lost.
    pub(super) fn new(history: &History, longest: Duration) -> Self {
        if longest.is_zero() {
            return Self::default();
        }
        let longest = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let tail = |kill: &Span| Span { from: kill.from.saturating_sub(longest), to: kill.to };
        Self(Spans::new(history.server_kills.iter().map(tail).collect()))
    }

    /// Whether an answer within these bounds may be undone.
    pub(super) fn touch(&self, from: u64, to: u64) -> bool {
        self.0.touch(from, to)
    }

    /// Whether all that says that the job is there may be undone.
    pub(super) fn shake_all(&self, tries: &[Try]) -> bool {
        let acks = |t: &&Try| !matches!(t.fate, Fate::Refused | Fate::Unknown);
        tries.iter().filter(acks).all(|t| self.touch(t.span.from, t.span.to))
    }

    /// Whether something that was answered about the job may be undone.
    pub(super) fn shake(&self, story: &Story<'_>) -> bool {
        let tries = story.tries.iter().filter(|t| t.fate != Fate::Unknown).map(|t| t.span);
        let acts = story.acts.iter().filter(|act| act.sure != Sure::Unknown).map(|act| act.span);
        let ends = story.ends.iter().filter(|end| end.state.is_some()).map(|end| end.span);
        tries
            .chain(acts)
            .chain(ends)
            .chain(story.runs.iter().map(|run| run.span))
            .chain(story.backs.iter().map(|back| back.span))
            .chain(story.held.iter().map(|told| told.span))
            .any(|span| self.touch(span.from, span.to))
    }

    /// Whether what was told of a lost lease may be undone: then it was not lost.
    pub(super) fn shake_told(&self, story: &Story<'_>) -> bool {
        story.lost.iter().any(|told| self.touch(told.span.from, told.span.to))
    }
}
