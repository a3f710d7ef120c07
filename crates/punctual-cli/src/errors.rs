//! Prints errors for people (error, why, try, code), and maps codes to exit codes.

use std::{
    error::Error as _,
    fmt::{self, Write as _},
    io,
    process::ExitCode,
};

use punctual::{ErrorKind, store::CheckLevel};

use crate::{
    output::{Format, clean},
    paint::Paint,
    talk,
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
    code: Code,
    message: String,
    why: Vec<String>,
    hint: Option<String>,
    /// The exit code, where it is not that of `code`.
    exit: Option<u8>,
}

/// A `Result` of a command.
pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

/// The exit codes of the program. `lock run` also has those of its command, and a signal n has 128 + n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Success = 0,
    Failed = 1,
    Invalid = 2,
    NotFound = 3,
    Conflict = 4,
    Store = 5,
    Refused = 6,
    TimedOut = 7,
    Unknown = 8,
    /// Of `lock run`: another process holds the lock; a temporary failure, by sysexits.h.
    #[cfg(unix)]
    Held = 75,
    /// Of `lock run`: the lock was lost and the command killed, as `timeout` kills.
    #[cfg(unix)]
    Lost = 124,
    /// Of `lock run`: the command can't be started, as shells say it.
    #[cfg(unix)]
    NotStarted = 126,
    /// Of `lock run`: there is no such command, as shells say it.
    #[cfg(unix)]
    NoCommand = 127,
    Interrupted = 130,
}

impl Exit {
    /// Those of all commands, as `punctual --help` lists them.
    #[cfg(all(test, unix))]
    pub(crate) const ALL: [(Self, &'static str); 10] = [
        (Self::Success, "success"),
        (Self::Failed, "failed"),
        (Self::Invalid, "wrong usage"),
        (Self::NotFound, "not found"),
        (Self::Conflict, "conflict or wrong state"),
        (Self::Store, "store unreachable or full"),
        (Self::Refused, "refused by the server"),
        (Self::TimedOut, "timed out"),
        (Self::Unknown, "outcome unknown, repeat with the same id or key"),
        (Self::Interrupted, "interrupted"),
    ];

    /// The others of `lock run`.
    #[cfg(all(test, unix))]
    pub(crate) const OF_LOCK_RUN: [(Self, &'static str); 4] = [
        (Self::Held, "Another process holds the lock."),
        (Self::Lost, "The lock was lost, and the command was killed."),
        (Self::NotStarted, "The command cannot be started."),
        (Self::NoCommand, "The command does not exist."),
    ];
}

impl From<Exit> for u8 {
    fn from(exit: Exit) -> Self {
        exit as Self
    }
}

/// The exit code of a command that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = Exit::Interrupted as u8;

/// The codes of errors, which programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Invalid,
    PayloadTooLarge,
    Unsupported,
    Outdated,
    NotFound,
    QueueUnknown,
    Conflict,
    WrongState,
    UniqueConflict,
    LimiterConflict,
    Unauthenticated,
    Forbidden,
    StoreUnavailable,
    StoreFull,
    TimedOut,
    UnknownOutcome,
    Corrupt,
    Failed,
}

impl Code {
    /// All of them, by their exit codes.
    pub(crate) const ALL: [Self; 18] = [
        Self::Invalid,
        Self::PayloadTooLarge,
        Self::Unsupported,
        Self::Outdated,
        Self::NotFound,
        Self::QueueUnknown,
        Self::Conflict,
        Self::WrongState,
        Self::UniqueConflict,
        Self::LimiterConflict,
        Self::StoreUnavailable,
        Self::StoreFull,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::TimedOut,
        Self::UnknownOutcome,
        Self::Corrupt,
        Self::Failed,
    ];

    /// Returns the code as it is printed, and its exit code.
    const fn row(self) -> (&'static str, Exit) {
        match self {
            Self::Invalid => ("invalid", Exit::Invalid),
            Self::PayloadTooLarge => ("payload_too_large", Exit::Invalid),
            Self::Unsupported => ("unsupported", Exit::Invalid),
            Self::Outdated => ("outdated", Exit::Invalid),
            Self::NotFound => ("not_found", Exit::NotFound),
            Self::QueueUnknown => ("queue_unknown", Exit::NotFound),
            Self::Conflict => ("conflict", Exit::Conflict),
            Self::WrongState => ("wrong_state", Exit::Conflict),
            Self::UniqueConflict => ("unique_conflict", Exit::Conflict),
            Self::LimiterConflict => ("limiter_conflict", Exit::Conflict),
            Self::StoreUnavailable => ("store_unavailable", Exit::Store),
            Self::StoreFull => ("store_full", Exit::Store),
            Self::Unauthenticated => ("unauthenticated", Exit::Refused),
            Self::Forbidden => ("forbidden", Exit::Refused),
            Self::TimedOut => ("timed_out", Exit::TimedOut),
            Self::UnknownOutcome => ("unknown_outcome", Exit::Unknown),
            Self::Corrupt => ("corrupt", Exit::Failed),
            Self::Failed => ("failed", Exit::Failed),
        }
    }

    /// Returns the code as it is printed.
    pub(crate) const fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the exit code of a command that fails with this code.
    pub(crate) const fn exit(self) -> Exit {
        self.row().1
    }
}

impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Self {
        let named = Self::ALL.into_iter().find(|code| code.name() == kind.code());
        named.unwrap_or(Self::Failed)
    }
}

impl Failure {
    /// Everything was printed already, and something failed.
    pub(crate) const FAILED: Self = Self::Silent(Exit::Failed as u8);

    pub(crate) fn new(code: impl Into<Code>, message: impl Into<String>) -> Self {
        let (code, message) = (code.into(), message.into());
        Self::Told(Box::new(Told { code, message, why: Vec::new(), hint: None, exit: None }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::Invalid, message)
    }

    pub(crate) fn payload_too_large(message: impl Into<String>) -> Self {
        Self::new(Code::PayloadTooLarge, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Code::Unsupported, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub(crate) fn queue_unknown(message: impl Into<String>) -> Self {
        Self::new(Code::QueueUnknown, message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(Code::Conflict, message)
    }

    pub(crate) fn wrong_state(message: impl Into<String>) -> Self {
        Self::new(Code::WrongState, message)
    }

    pub(crate) fn unique_conflict(message: impl Into<String>) -> Self {
        Self::new(Code::UniqueConflict, message)
    }

    pub(crate) fn limiter_conflict(message: impl Into<String>) -> Self {
        Self::new(Code::LimiterConflict, message)
    }

    #[cfg(feature = "import")]
    pub(crate) fn store_unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::StoreUnavailable, message)
    }

    pub(crate) fn store_full(message: impl Into<String>) -> Self {
        Self::new(Code::StoreFull, message)
    }

    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self::new(Code::TimedOut, message)
    }

    pub(crate) fn unknown_outcome(message: impl Into<String>) -> Self {
        Self::new(Code::UnknownOutcome, message)
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Code::Corrupt, message)
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Code::Failed, message)
    }

    /// Returns the message, without its code; empty if there is none.
    #[cfg(feature = "serve")]
    pub(crate) fn message(&self) -> &str {
        if let Self::Told(told) = self { &told.message } else { "" }
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
    pub(crate) fn exits(mut self, exit: impl Into<u8>) -> Self {
        if let Self::Told(told) = &mut self {
            told.exit = Some(exit.into());
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
        Self::unsupported(format!("{command} does not run on this system")).why(
            "the system has no process groups, so punctual cannot know when a command has ended completely",
        )
    }

    /// Makes the failure of a command that changed something, after the reader of its output went away.
    pub(crate) fn unread() -> Self {
        Self::failed("the output could not be printed completely")
            .why("the reader of stdout went away; what the command did until then remains done")
    }

    /// Prints the error on stderr: as text, or as one line of JSON if the output format is JSON.
    pub(crate) fn tell(&self, format: Format, paint: Paint) {
        if let Self::Told(told) = self {
            if format.is_json() {
                talk::say(&told.json().to_string());
                return;
            }
            let (style, text) = (paint.level(CheckLevel::Fail), told.text());
            // If stderr is closed, too, the error cannot be printed anywhere.
            talk::print(&format!("{style}error{style:#}: {text}"));
        }
    }

    /// Returns the error as JSON, if there is one to print.
    #[cfg(all(test, unix))]
    pub(crate) fn json(&self) -> Option<String> {
        if let Self::Told(told) = self { Some(told.json().to_string()) } else { None }
    }

    pub(crate) fn exit(&self) -> u8 {
        match self {
            Self::Told(told) => told.exit(),
            Self::Silent(code) => *code,
            Self::Unread => Exit::Success as u8,
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
        let (code, exit) = (code.name(), self.exit());
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
        let _ = writeln!(text, "\n  code  {} (exit {})", self.code.name(), self.exit());
        text
    }

    fn exit(&self) -> u8 {
        self.exit.unwrap_or(self.code.exit() as u8)
    }
}

impl From<punctual::Error> for Failure {
    fn from(error: punctual::Error) -> Self {
        let mut failure = Self::new(error.kind(), error.to_string());
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
            Err(error) => Self::failed(format!("{error:#}")),
        }
    }
}

impl From<io::Error> for Failure {
    /// Maps a broken pipe to [`Failure::Unread`]: the reader of the output may stop at any time.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Unread,
            // Of stdout: no command writes its own files without saying so.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::failed(format!("the output could not be printed completely: {error}"))
                    .why("what the command did until then remains done")
            }
            _ => Self::failed(error.to_string()),
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
