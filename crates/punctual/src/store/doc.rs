//! Documents: small values with versions, which whoever changes them reads first. Schedules and topics are kept so.

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::check_name,
        limits::{DOC_BYTES_MAX, DOCS_MAX, NAME_BYTES_MAX},
    },
    store::check_limit,
};

/// A value under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doc {
    /// Its name; unique in the store.
    pub key: String,
    /// Above those of all earlier changes of documents of the store, so that it is never used again, not even for a document
    /// that was removed and made again.
    pub version: u64,
    /// At most 64 KiB; the store does not look into it.
    pub value: Vec<u8>,
}

/// One step on the documents of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocOp {
    /// Tells a document.
    Get {
        /// Which one.
        key: String,
    },
    /// Tells documents in the order of the bytes of their keys: up to the limit, and up to 1 MiB of values or one of them.
    List {
        /// How their keys begin; empty for all.
        prefix: String,
        /// Behind this key.
        after: Option<String>,
        /// At most this many, 1 to 1,000.
        limit: usize,
    },
    /// Makes or replaces a document.
    Put {
        /// Which one: 1 to 255 bytes without NUL.
        key: String,
        /// What must be true of it.
        only: Only,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Removes a document.
    Remove {
        /// Which one.
        key: String,
        /// What must be true of it.
        only: Only,
    },
}

/// When a document may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// Always.
    Always,
    /// If there is none yet.
    IfAbsent,
    /// If it still has this version.
    IfVersion(u64),
}

impl Only {
    /// Whether it allows to change a document of this version, or one that is not there.
    pub(crate) fn allows(self, version: Option<u64>) -> bool {
        match self {
            Self::Always => true,
            Self::IfAbsent => version.is_none(),
            Self::IfVersion(seen) => version == Some(seen),
        }
    }
}

/// The answer to a [`DocOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocReply {
    /// How the document stands now. Behind a put or remove that is as was asked for: by this call, or because it was so
    /// already, and then nothing was changed, its version neither. So a call whose answer was lost may be made again (S3).
    Is(Option<Doc>),
    /// The document stands otherwise than the change requires, namely so; nothing was changed.
    Conflict(Option<Doc>),
    /// Some of the documents that were asked for.
    Page {
        /// In the order of their keys.
        docs: Vec<Doc>,
        /// Whether there are others behind them.
        more: bool,
    },
}

impl DocOp {
    /// Checks every limit.
    ///
    /// # Errors
    /// `Invalid`; `TooLarge` for a value over 64 KiB.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Get { key } | Self::Remove { key, .. } => check_name("key", key),
            Self::List { prefix, after, limit } => {
                check_limit("list", *limit)?;
                let longest = prefix.len().max(after.as_ref().map_or(0, String::len));
                if longest <= NAME_BYTES_MAX {
                    return Ok(());
                }
                Err(Error::invalid(format!("key of {longest} bytes is over the limit of {NAME_BYTES_MAX}")))
            }
            Self::Put { key, value, .. } => {
                check_name("key", key)?;
                if value.len() <= DOC_BYTES_MAX {
                    return Ok(());
                }
                let n = value.len();
                Err(Error::new(
                    ErrorKind::TooLarge,
                    format!("document of {n} bytes is over the limit of {DOC_BYTES_MAX}"),
                ))
            }
        }
    }
}

/// The error for one document more than a store has room for.
pub(crate) fn too_many() -> Error {
    Error::new(ErrorKind::StoreFull, format!("the store has {DOCS_MAX} documents, which is the limit"))
        .with_hint("remove schedules or topics that are not needed")
}
