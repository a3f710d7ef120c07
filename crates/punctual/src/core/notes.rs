//! Notes of a job's runs: progress, and log lines for people.
//!
//! They are kept with the job and passed on from run to run.

use serde::{Deserialize, Serialize};

use crate::core::{
    error::{Error, ErrorKind, Result},
    job::cut_error,
    limits::{LOG_LINES_MAX, NOTES_BYTES_MAX},
};

/// The notes of a job: its progress and its last log lines.
///
/// New notes replace the stored ones as a whole; the worker passes on those of earlier runs. An operator's retry
/// drops them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Notes {
    /// The progress, if reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The log: at most 64 lines, oldest first. With the progress message, at most 4 KiB of text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<LogLine>,
}

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// How much is done, in the unit of the handler.
    pub done: u64,
    /// The total; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// What the run is doing, for people; at most 1 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A log line of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The number of the run, from 1.
    pub attempt: u32,
    /// When it was written, in Unix milliseconds by the worker's clock.
    pub at_ms: u64,
    /// The text, at most 1 KiB.
    pub text: String,
}

impl Progress {
    /// Returns the part that is done, from 0 to 1; `None` if the total is unknown.
    pub fn fraction(&self) -> Option<f64> {
        match self.total {
            None => None,
            Some(0) => Some(1.0),
            Some(total) => Some((self.done as f64 / total as f64).min(1.0)),
        }
    }
}

impl Notes {
    /// Returns whether there are no notes.
    pub const fn is_empty(&self) -> bool {
        self.progress.is_none() && self.log.is_empty()
    }

    /// Adds a line, cut at 1 KiB. Removes the oldest lines beyond the limits.
    pub fn push(&mut self, mut line: LogLine) {
        line.text.truncate(cut_error(&line.text).len());
        self.log.push(line);
        self.fit();
    }

    /// Sets the progress.
    ///
    /// Its message is cut at 1 KiB; the oldest lines are removed if there is too much text.
    pub fn report(&mut self, mut progress: Progress) {
        if let Some(text) = &mut progress.message {
            text.truncate(cut_error(text).len());
        }
        self.progress = Some(progress);
        self.fit();
    }

    fn fit(&mut self) {
        let mut surplus = self.log.len().saturating_sub(LOG_LINES_MAX);
        let mut bytes = self.bytes();
        for (i, line) in self.log.iter().enumerate() {
            if surplus <= i && bytes <= NOTES_BYTES_MAX {
                break;
            }
            surplus = i + 1;
            bytes -= line.text.len();
        }
        self.log.drain(..surplus);
    }

    /// Returns the bytes of text.
    pub(crate) fn bytes(&self) -> usize {
        let message = self.progress.as_ref().and_then(|progress| progress.message.as_ref());
        message.map_or(0, String::len) + self.log.iter().map(|line| line.text.len()).sum::<usize>()
    }

    /// Checks the limits that [`Notes::push`] and [`Notes::report`] keep.
    pub(crate) fn check(&self) -> Result<()> {
        let (lines, bytes) = (self.log.len(), self.bytes());
        if LOG_LINES_MAX < lines {
            Err(Error::invalid(format!("{lines} log lines are over the limit of {LOG_LINES_MAX}")))
        } else if NOTES_BYTES_MAX < bytes {
            let text = format!("notes of {bytes} bytes are over the limit of {NOTES_BYTES_MAX}");
            Err(Error::new(ErrorKind::TooLarge, text).with_hint("drop the oldest lines"))
        } else {
            Ok(())
        }
    }

    /// Returns the stored form.
    #[cfg(any(feature = "redis", feature = "sqlite"))]
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("invariant: notes are plain data, which JSON can hold")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> LogLine {
        LogLine { attempt: 1, at_ms: 0, text: text.to_owned() }
    }

    #[test]
    fn the_oldest_lines_leave_where_there_are_too_many() {
        let mut notes = Notes::default();
        (0..=LOG_LINES_MAX).for_each(|n| notes.push(line(&n.to_string())));
        assert_eq!((notes.log.len(), notes.log[0].text.as_str()), (LOG_LINES_MAX, "1"));
        notes.check().unwrap();
    }

    #[test]
    fn the_oldest_lines_leave_where_they_are_too_long_and_the_newest_stays() {
        let mut notes = Notes::default();
        (0..9).for_each(|_| notes.push(line(&"ä".repeat(600))));
        assert_eq!(notes.log.len(), 4);
        assert!(notes.log.iter().all(|line| line.text.len() == 1_024));
        notes.report(Progress { done: 1, total: Some(2), message: Some("m".repeat(2_000)) });
        assert_eq!(notes.log.len(), 3);
        assert_eq!(notes.progress.as_ref().unwrap().message.as_ref().unwrap().len(), 1_024);
        notes.check().unwrap();
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let many = Notes { log: vec![line(""); LOG_LINES_MAX + 1], ..Notes::default() };
        assert_eq!(many.check().unwrap_err().kind(), ErrorKind::Invalid);
        let long = Notes { log: vec![line(&"x".repeat(NOTES_BYTES_MAX + 1))], ..Notes::default() };
        assert_eq!(long.check().unwrap_err().kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn a_part_of_the_whole() {
        let part = |done, total| Progress { done, total, message: None }.fraction();
        assert_eq!(
            [part(1, Some(4)), part(5, Some(4)), part(0, Some(0)), part(3, None)],
            [Some(0.25), Some(1.0), Some(1.0), None]
        );
    }
}
