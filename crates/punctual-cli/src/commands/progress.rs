//! The progress of a long command: one line on stderr that is overwritten, only on a terminal.

use std::{
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use crate::talk;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(200);

pub(crate) struct Progress {
    wanted: bool,
    shown: Option<Instant>,
}

impl Progress {
    pub(super) fn new(wanted: bool) -> Self {
        Self { wanted: wanted && io::stderr().is_terminal(), shown: None }
    }

    /// Shows the text, unless one was shown just now.
    pub(crate) fn show(&mut self, text: impl FnOnce() -> String) {
        if self.wanted && self.shown.is_none_or(|at| EVERY <= at.elapsed()) {
            self.shown = Some(Instant::now());
            talk::print(&format!("\r\u{1b}[K{}", text()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            talk::print("\r\u{1b}[K");
        }
    }
}
