//! The public error type.
//!
//! Expected outcomes are values, not errors: a duplicate, a lost lease, a job in another state. An `Err` means that
//! the call could not do its work.

use std::{error::Error as StdError, fmt};

/// The error of a failed call.
///
/// Decisions to repeat a call look only at [`Error::kind`]. `Display` prints one level; [`StdError::source`] has the
/// causes.
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    /// Whether it is the answer of something else than the store.
    is_foreign: bool,
}

/// The kinds of [`Error`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The store is unavailable; nothing was changed. Repeat the call later.
    Unavailable,
    /// The answer was lost: the call may have taken effect. It is safe to repeat it with the same ids (S3).
    UnknownOutcome,
    /// The store's disk or memory is full; nothing was written.
    StoreFull,
    /// The queue is at its cap in jobs or bytes; the job was not stored.
    Full,
    /// The store or the client was closed.
    Closed,
    /// The input breaks a documented limit or rule; nothing was written.
    Invalid,
    /// The input is larger than a documented limit; nothing was written.
    TooLarge,
    /// Two settings, or two parts of one call, contradict each other, or other callers kept changing the same thing.
    Conflict,
    /// A stored record or file cannot be read. Its bytes are kept.
    Corrupt,
    /// This store, build or version does not support the call.
    Unsupported,
    /// A newer version of punctual has written to the store.
    ///
    /// This process changed nothing and cannot go on. Start a process of that version.
    Outdated,
    /// A server needs a token, or does not know the one it got. Repeating the call does not help.
    Unauthenticated,
    /// The token does not allow the call. Nothing was changed.
    Forbidden,
}

impl ErrorKind {
    /// All kinds.
    #[doc(hidden)]
    pub const ALL: [Self; 13] = [
        Self::Unavailable,
        Self::UnknownOutcome,
        Self::StoreFull,
        Self::Full,
        Self::Closed,
        Self::Invalid,
        Self::TooLarge,
        Self::Conflict,
        Self::Corrupt,
        Self::Unsupported,
        Self::Outdated,
        Self::Unauthenticated,
        Self::Forbidden,
    ];

    /// Returns the code of the kind. It is the same in every interface.
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
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
        }
    }
}

/// A `Result` with the [`Error`] of punctual.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Most causes of an error that are printed, in case the chain never ends.
const CAUSES_MAX: usize = 16;

/// Formats an error and its causes as `a: b: c`, without a cause that is already part of the text before it.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    for _ in 0..CAUSES_MAX {
        let Some(because) = cause else { break };
        let words = because.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = because.source();
    }
    text
}

impl Error {
    /// Returns the error of a call that was made in part: it must not say that nothing was changed.
    #[doc(hidden)]
    #[must_use]
    pub fn in_part(self) -> Self {
        if !matches!(self.kind, ErrorKind::Unavailable | ErrorKind::StoreFull | ErrorKind::Unsupported) {
            return self;
        }
        Self::new(ErrorKind::UnknownOutcome, format!("done only in part: {self}")).with_source(self)
    }

    /// Makes an error.
    ///
    /// `message` is in lower case, operation then object, without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None, is_foreign: false }
    }

    /// Makes an [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Adds a hint: what to try.
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

    /// Marks it as the answer of something between the caller and the store, such as a proxy. It says nothing of the call.
    #[doc(hidden)]
    #[must_use]
    pub const fn foreign(mut self) -> Self {
        self.is_foreign = true;
        self
    }

    /// Returns whether something else than the store answered.
    #[doc(hidden)]
    pub const fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Returns the kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns its words and those of its causes, as `a: b: c`.
    ///
    /// ```
    /// # use punctual::{Error, ErrorKind};
    /// let full = std::io::Error::other("no space left on device");
    /// let error = Error::new(ErrorKind::Unavailable, "could not write to jobs.db").with_source(full);
    /// assert_eq!(error.with_causes(), "could not write to jobs.db: no space left on device");
    /// ```
    pub fn with_causes(&self) -> String {
        chain(self)
    }

    /// Returns the hint, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Returns whether the same call, with the same ids, can be repeated.
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
