//! Counts what became of the entries.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::Serialize;

use super::batch::Answer;
use crate::{
    output::{counted, grouped},
    times::span,
};

/// The number of entries of each source that are printed one by one.
const EXAMPLES_MAX: usize = 3;

/// So far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) taken: u64,
    pub(super) already_here: u64,
    /// Entries that were jobs, whose records are gone.
    pub(super) remembered: u64,
    /// By the lists whose payloads could not go yet, the hash of these.
    pub(super) kept: BTreeMap<String, String>,
    /// Popped by another process between the read and the removal.
    pub(super) vanished: u64,
    /// By the keys of their sources.
    over: BTreeMap<String, Over>,
}

/// What became no jobs, of one source.
#[derive(Clone, Debug, Default)]
pub(super) struct Over {
    /// Their payloads are not there; they stay.
    pub(super) left: u64,
    /// They can't be jobs.
    pub(super) refused: u64,
    /// Where the refused are, if not in their old place.
    pub(super) moved_to: Option<String>,
    examples: Vec<String>,
}

impl Over {
    pub(super) fn leave(&mut self, entry: &str, why: &str) {
        self.left += 1;
        self.example(entry, why);
    }

    pub(super) fn refuse(&mut self, entry: &str, why: &str) {
        self.refused += 1;
        self.example(entry, why);
    }

    pub(super) const fn sum(&self) -> u64 {
        self.left + self.refused
    }

    fn example(&mut self, entry: &str, why: &str) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(format!("{entry}: {why}"));
        }
    }
}

impl Tally {
    /// Entries that came over.
    pub(super) const fn here(&self) -> u64 {
        self.taken + self.already_here + self.remembered
    }

    /// Counts an entry that came over; answers why it did not, otherwise.
    pub(super) fn count(&mut self, answer: Answer) -> Option<String> {
        let count = match answer {
            Answer::Taken => &mut self.taken,
            Answer::Here => &mut self.already_here,
            Answer::Remembered => &mut self.remembered,
            Answer::Refused(why) => return Some(why),
        };
        *count += 1;
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.here() == 0 && self.over.is_empty()
    }

    /// Sets what is left at a source, in place of what was set before.
    pub(super) fn put(&mut self, key: &str, over: Over) {
        if over.sum() == 0 {
            self.over.remove(key);
        } else {
            self.over.insert(key.to_owned(), over);
        }
    }

    /// What is over at a source so far.
    pub(super) fn of(&self, key: &str) -> Over {
        self.over.get(key).cloned().unwrap_or_default()
    }

    /// What people have to look after.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (key, over) in &self.over {
            let place = match &over.moved_to {
                Some(list) => format!("are now in {list}"),
                None => "stay where they are".to_owned(),
            };
            lines.push(format!("{key}: {} that could not be imported {place}", entries(over.sum())));
            lines.extend(over.examples.iter().map(|example| format!("  {example}")));
        }
        if 0 < self.remembered {
            lines.push(format!(
                "warning: the jobs of {} ended or were deleted within the last day; these entries were only removed",
                entries(self.remembered)
            ));
        }
        for (list, hash) in &self.kept {
            lines.push(format!(
                "{list}: messages of imported entries stay in {hash} while producers write; run the command again after they are switched"
            ));
        }
        if 0 < self.vanished {
            lines.push(format!(
                "warning: {} entries were popped by another process during the import, and run twice: stop the old consumers",
                grouped(self.vanished)
            ));
        }
        lines
    }

    pub(super) fn summary(&self, took: Duration) -> Summary {
        let sum = |of: fn(&Over) -> u64| self.over.values().map(of).sum();
        Summary {
            taken: self.taken,
            already_here: self.already_here,
            remembered: self.remembered,
            left: sum(|over| over.left),
            refused: sum(|over| over.refused),
            vanished: self.vanished,
            seconds: took.as_secs_f64(),
        }
    }
}

fn entries(n: u64) -> String {
    counted(n, "entry").replace("entrys", "entries")
}

/// All of it, for people and as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// Entries that became jobs just now.
    taken: u64,
    /// Entries that were jobs already, of an import that was stopped.
    already_here: u64,
    /// Entries that were jobs, and whose jobs ended or were deleted within the last day.
    remembered: u64,
    left: u64,
    refused: u64,
    vanished: u64,
    seconds: f64,
}

impl Summary {
    /// Whether nothing is left for people to look after.
    pub(super) const fn is_whole(&self) -> bool {
        self.left == 0 && self.refused == 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [taken, here, left, refused] =
            [self.taken, self.already_here, self.left, self.refused].map(grouped);
        let took = span(Duration::from_secs_f64(self.seconds));
        write!(f, "{taken} imported · {here} imported before · {left} left · {refused} refused · {took}")
    }
}
