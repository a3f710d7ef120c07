//! The one public error. Expected outcomes (a duplicate, a lost lease, a job in another state) are values, not errors: an
//! `Err` means that the call could not do its job.

use std::{error::Error as StdError, fmt};

/// What a call could not do, and why.
///
/// [`Error::kind`] is all that a decision to repeat looks at; `Display` shows one level, [`StdError::source`] the rest.
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The store can't be reached now; nothing was changed. Repeat later.
    Unavailable,
    /// The answer was lost: the call may or may not have taken effect. Repeating it with the same ids is safe (S3).
    UnknownOutcome,
    /// The store's disk or memory is full; nothing was written.
    StoreFull,
    /// The queue is at its cap in jobs or bytes; the job was not stored.
    Full,
    /// The store or the client was closed.
    Closed,
    /// The input breaks a documented limit or rule; nothing was written.
    Invalid,
    /// Larger than a documented limit; nothing was written.
    TooLarge,
    /// Two settings, or two pieces of one call, can't hold together.
    Conflict,
    /// A stored record or file can't be understood; its bytes are kept.
    Corrupt,
    /// This store, this build or this version can't do that.
    Unsupported,
    /// A newer version of punctual has written to the store. This process changed nothing, and can't go on: start one of that
    /// version.
    Outdated,
}

impl ErrorKind {
    /// The code that people and programs see, the same in every interface.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unavailable | Self::Closed => "store_unavailable",
            Self::UnknownOutcome => "unknown_outcome",
            Self::StoreFull | Self::Full => "store_full",
            Self::Invalid => "invalid",
            Self::TooLarge => "payload_too_large",
            Self::Conflict => "conflict",
            Self::Corrupt => "corrupt",
            Self::Unsupported => "unsupported",
            Self::Outdated => "outdated",
        }
    }
}

/// A `Result` with punctual's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error of `kind`; `message` is lower case, operation then object, without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    /// Makes an [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Adds what to try.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure this is.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to try, where there is something to try.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Whether the same call, with the same ids, may be repeated.
    pub const fn is_repeatable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::UnknownOutcome)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}
