//! Prints errors for people (error, why, try, code), and maps codes to exit codes.

use std::{
    error::Error as _,
    fmt::{self, Write as _},
    io::{self, Write as _},
    process::ExitCode,
};

use punctual::store::CheckLevel;

use crate::{
    output::{Format, clean},
    paint::Paint,
};

/// Why a command ends with an exit code other than 0.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error to print on stderr.
    Told(Box<Told>),
    /// Everything was printed already; only the exit code is left.
    Silent(u8),
    /// The reader of stdout went away. For a command that only reads, that is not a failure.
    Unread,
}

/// The parts of an error.
#[derive(Debug)]
pub(crate) struct Told {
    code: &'static str,
    message: String,
    why: Vec<String>,
    hint: Option<String>,
    /// The exit code, where it is not that of `code`.
    exit: Option<u8>,
}

/// A `Result` of a command.
pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

/// The exit code of a command that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// Returns the exit code of an error code.
pub(crate) fn exit_code(code: &str) -> u8 {
    match code {
        "invalid" | "unsupported" | "outdated" | "payload_too_large" => 2,
        "not_found" | "queue_unknown" => 3,
        "wrong_state" | "unique_conflict" | "gate_conflict" | "conflict" => 4,
        "store_unavailable" | "store_full" => 5,
        "timed_out" => 7,
        "unknown_outcome" => 8,
        // `corrupt`, `failed`.
        _ => 1,
    }
}

impl Failure {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self::Told(Box::new(Told { code, message: message.into(), why: Vec::new(), hint: None, exit: None }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new("invalid", message)
    }

    /// Adds a reason.
    pub(crate) fn why(mut self, why: impl Into<String>) -> Self {
        if let Self::Told(told) = &mut self {
            told.why.push(why.into());
        }
        self
    }

    /// Adds what to try.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Told(told) = &mut self {
            told.hint = Some(hint.into());
        }
        self
    }

    /// Sets an exit code other than that of the error code.
    pub(crate) fn exits(mut self, exit: u8) -> Self {
        if let Self::Told(told) = &mut self {
            told.exit = Some(exit);
        }
        self
    }

    /// If the reader of stdout went away: returns another failure, which reports what the command did.
    pub(crate) fn if_unread(self, told: impl FnOnce() -> Self) -> Self {
        if matches!(self, Self::Unread) { told() } else { self }
    }

    /// Makes the failure of a command that this system does not support.
    #[cfg(not(unix))]
    pub(crate) fn no_process_groups(command: &str) -> Self {
        Self::new("unsupported", format!("{command} does not run on this system")).why(
            "the system has no process groups, so punctual cannot know when a command has ended completely",
        )
    }

    /// Makes the failure of a command that changed something, after the reader of its output went away.
    pub(crate) fn unread() -> Self {
        Self::new("failed", "the output could not be printed completely")
            .why("the reader of stdout went away; what the command did until then remains done")
    }

    /// Prints the error on stderr: as text, or as one line of JSON if the output format is JSON.
    pub(crate) fn tell(&self, format: Format, paint: Paint) {
        if let Self::Told(told) = self {
            if format.is_json() {
                let _ = writeln!(io::stderr(), "{}", told.json());
                return;
            }
            let (style, text) = (paint.level(CheckLevel::Fail), told.text());
            // If stderr is closed, too, the error cannot be printed anywhere.
            let _ = write!(io::stderr(), "{style}error{style:#}: {text}");
        }
    }

    pub(crate) fn exit(&self) -> u8 {
        match self {
            Self::Told(told) => told.exit(),
            Self::Silent(code) => *code,
            Self::Unread => 0,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(told) => f.write_str(&told.text()),
            Self::Silent(_) | Self::Unread => Ok(()),
        }
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> Self {
        failure.exit().into()
    }
}

impl Told {
    /// Returns the error as JSON.
    fn json(&self) -> serde_json::Value {
        let Self { code, message, why, hint, .. } = self;
        let exit = self.exit();
        serde_json::json!({ "error": { "code": code, "exit": exit, "message": message, "why": why, "try": hint } })
    }

    /// Returns the text after `error: `.
    fn text(&self) -> String {
        let mut text = clean(&self.message).into_owned();
        // A suggestion is printed next to the mistake.
        let (beside, below) = match self.hint.as_deref() {
            Some(hint) if hint.starts_with("did you mean") => (Some(hint), None),
            hint => (None, hint),
        };
        if let Some(hint) = beside {
            let _ = write!(text, "        {hint}");
        }
        for why in &self.why {
            let _ = write!(text, "\n  why   {}", clean(why));
        }
        if let Some(hint) = below {
            let _ = write!(text, "\n  try   {}", clean(hint));
        }
        let _ = writeln!(text, "\n  code  {} (exit {})", self.code, self.exit());
        text
    }

    fn exit(&self) -> u8 {
        self.exit.unwrap_or_else(|| exit_code(self.code))
    }
}

impl From<punctual::Error> for Failure {
    fn from(error: punctual::Error) -> Self {
        let mut failure = Self::new(error.kind().code(), error.to_string());
        let (mut source, mut last) = (error.source(), String::new());
        while let Some(cause) = source {
            let why = cause.to_string();
            // Some errors only wrap their cause, and repeat its text.
            if why != last {
                failure = failure.why(why.clone());
            }
            (source, last) = (cause.source(), why);
        }
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<punctual::Error>() {
            Ok(error) => error.into(),
            Err(error) => Self::new("failed", format!("{error:#}")),
        }
    }
}

impl From<io::Error> for Failure {
    /// Maps a broken pipe to [`Failure::Unread`]: the reader of the output may stop at any time.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Unread,
            _ => Self::new("failed", error.to_string()),
        }
    }
}

impl From<serde_json::Error> for Failure {
    /// Only output is written as JSON, so the output failed.
    fn from(error: serde_json::Error) -> Self {
        io::Error::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use punctual::{Error, ErrorKind};

    use super::*;

    fn text(failure: &Failure) -> String {
        match failure {
            Failure::Told(told) => told.text(),
            Failure::Silent(_) | Failure::Unread => String::new(),
        }
    }

    #[test]
    fn an_error_says_why_what_to_try_and_its_code() {
        let error = Error::new(ErrorKind::Unavailable, "could not open \"x.db\"")
            .with_source(io::Error::other("disk on fire"))
            .with_hint("put it out");
        assert_eq!(
            text(&error.into()),
            "could not open \"x.db\"\n  why   disk on fire\n  try   put it out\n  code  store_unavailable (exit 5)\n"
        );
    }

    #[test]
    fn a_cause_that_says_the_same_again_is_told_once() {
        let cause = Error::invalid("the same").with_source(io::Error::other("the same"));
        let error = Error::new(ErrorKind::Corrupt, "this").with_source(cause);
        assert_eq!(text(&error.into()), "this\n  why   the same\n  code  corrupt (exit 1)\n");
    }

    #[test]
    fn a_suggestion_stands_beside_the_mistake() {
        let wrong = punctual::job::Filter::parse("kimd:x").unwrap_err();
        assert_eq!(
            text(&wrong.into()),
            "unknown field `kimd` in filter        did you mean `kind`?\n  code  invalid (exit 2)\n"
        );
    }

    #[test]
    fn what_a_job_says_never_reaches_the_terminal_raw() {
        assert!(!text(&Failure::invalid("\u{1b}[2J")).contains('\u{1b}'));
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let gone = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((text(&gone).as_str(), gone.exit()), ("", 0));
    }
}
