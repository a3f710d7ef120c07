//! What the handlers of the drill noted: a line when a run begins, ticks while a slow one goes on, and a line at its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use crate::drill::Outcome;

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Begin,
    Tick,
    /// Its handler came to its end. The verdict follows.
    End,
}

/// A line.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub(super) step: Step,
    pub(super) job: String,
    pub(super) fence: u64,
    pub(super) attempt: u32,
    /// The process of the child.
    pub(super) pid: i32,
    pub(super) worker: String,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub(super) at: u64,
}

/// Reads all whole lines, in the order in which they were written.
pub(super) fn read(file: &Path) -> Outcome<Vec<Note>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(note).collect()
}

fn note(line: &str) -> Outcome<Note> {
    let words: Vec<&str> = line.split(' ').collect();
    let [step, job, fence, attempt, pid, worker, at] = words[..] else {
        return Err(format!("{line:?} is no note of a handler").into());
    };
    let step = match step {
        "begin" => Step::Begin,
        "tick" => Step::Tick,
        "end" => Step::End,
        other => return Err(format!("{other:?} is no step of a run").into()),
    };
    Ok(Note {
        step,
        job: job.to_owned(),
        fence: fence.parse()?,
        attempt: attempt.parse()?,
        pid: pid.parse()?,
        worker: worker.to_owned(),
        at: at.parse()?,
    })
}

/// The runs that have not ended: the last note of each child that is in the midst of one. Children that are gone are among them.
pub(super) fn open(notes: &[Note]) -> Vec<Note> {
    let mut last = BTreeMap::new();
    for note in notes {
        last.insert(note.pid, note);
    }
    last.into_values().filter(|note| note.step != Step::End).cloned().collect()
}

/// All children that ever ran a job.
pub(super) fn pids(notes: &[Note]) -> BTreeSet<i32> {
    notes.iter().map(|note| note.pid).collect()
}
