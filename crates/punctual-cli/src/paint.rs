//! Colours of states and errors. They repeat what the text says, and are used on terminals only unless requested.

use std::{ffi::OsString, io::IsTerminal};

use clap::builder::styling::{AnsiColor, Style};
use punctual::{job::Status, store::CheckLevel};

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    /// On terminals, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

impl Color {
    /// What the command line says before it is read as a whole: its own errors and help have colours too.
    pub(crate) fn of(words: &[OsString]) -> Self {
        let value = |i: usize, word: &OsString| match word.to_str()?.strip_prefix("--color")? {
            "" => words.get(i + 1)?.to_str().map(str::to_owned),
            rest => rest.strip_prefix('=').map(str::to_owned),
        };
        let chosen = words.iter().enumerate().find_map(|(i, word)| value(i, word));
        let chosen = chosen.or_else(|| std::env::var("PUNCTUAL_COLOR").ok());
        chosen.and_then(|chosen| clap::ValueEnum::from_str(&chosen, false).ok()).unwrap_or_default()
    }

    /// The same for the library that reads command lines.
    pub(crate) const fn choice(self) -> clap::ColorChoice {
        match self {
            Self::Auto => clap::ColorChoice::Auto,
            Self::Always => clap::ColorChoice::Always,
            Self::Never => clap::ColorChoice::Never,
        }
    }

    /// The colours of one stream.
    pub(crate) fn on(self, stream: &impl IsTerminal) -> Paint {
        let refused = || {
            std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
                || std::env::var_os("TERM").is_some_and(|value| value == "dumb")
        };
        Paint(match self {
            Self::Auto => stream.is_terminal() && !refused(),
            Self::Always => true,
            Self::Never => false,
        })
    }
}

/// The colours of a stream; none where it has none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paint(bool);

impl Paint {
    pub(crate) const fn is_on(self) -> bool {
        self.0
    }

    /// The colour of a state.
    pub(crate) fn status(self, status: Status) -> Style {
        self.color(match status {
            Status::Scheduled => AnsiColor::Blue,
            Status::Ready | Status::Running => AnsiColor::Cyan,
            Status::Blocked | Status::Retrying => AnsiColor::Yellow,
            Status::Done => AnsiColor::Green,
            Status::Dead => AnsiColor::Red,
            Status::Cancelled => AnsiColor::Magenta,
        })
    }

    /// The colour of a finding.
    pub(crate) fn level(self, level: CheckLevel) -> Style {
        self.color(match level {
            CheckLevel::Ok => AnsiColor::Green,
            CheckLevel::Warn => AnsiColor::Yellow,
            // Must be mended, or is nothing that this version knows.
            _ => AnsiColor::Red,
        })
    }

    fn color(self, color: AnsiColor) -> Style {
        if self.0 { color.on_default().bold() } else { Style::new() }
    }
}
