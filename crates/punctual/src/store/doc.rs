//! Documents: small values with versions, for changes by read, compare and replace. Schedules and topics are
//! documents.

use serde::{Deserialize, Serialize};

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::check_name,
        json::bytes,
        limits::{DOC_BYTES_MAX, DOCS_MAX, NAME_BYTES_MAX},
    },
    store::check_limit,
};

/// A document: a value under a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doc {
    /// The key, unique in the store.
    pub key: String,
    /// The version. It is above those of all earlier changes of documents of the store. So it is never reused, not
    /// even for a document that was removed and made again.
    pub version: u64,
    /// The value, at most 64 KiB. The store does not read it.
    #[serde(with = "bytes")]
    pub value: Vec<u8>,
}

/// A step on the documents of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum DocOp {
    /// Returns a document.
    Get {
        /// The key.
        key: String,
    },
    /// Returns documents in the byte order of their keys: up to the limit, and up to 1 MiB of values or one document.
    List {
        /// The prefix of their keys; empty for all.
        prefix: String,
        /// The key after which to start.
        after: Option<String>,
        /// The most documents, 1 to 1,000.
        limit: usize,
    },
    /// Creates or replaces a document.
    Put {
        /// The key: 1 to 255 bytes without NUL.
        key: String,
        /// The condition.
        precondition: Precondition,
        /// The new value.
        #[serde(with = "bytes")]
        value: Vec<u8>,
    },
    /// Removes a document.
    Remove {
        /// The key.
        key: String,
        /// The condition.
        precondition: Precondition,
    },
}

/// The condition under which a document is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precondition {
    /// Always.
    Always,
    /// Only if it does not exist.
    IfAbsent,
    /// Only if it has this version.
    IfVersion(u64),
}

impl Precondition {
    /// Returns whether a document of this version (`None`: none exists) can be changed.
    pub(crate) fn allows(self, version: Option<u64>) -> bool {
        match self {
            Self::Always => true,
            Self::IfAbsent => version.is_none(),
            Self::IfVersion(seen) => version == Some(seen),
        }
    }
}

/// The answer to a [`DocOp`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocReply {
    /// The document as it is now. After a put or remove it is as requested: by this call, or because it already was.
    /// In the second case nothing was changed, not even its version. So a call whose answer was lost can be repeated
    /// (S3).
    Is(Option<Doc>),
    /// The document does not meet the condition; this is how it is. Nothing was changed.
    Conflict(Option<Doc>),
    /// A page of documents.
    Page {
        /// The documents, in the order of their keys.
        docs: Vec<Doc>,
        /// Whether there are more after them.
        more: bool,
    },
}

impl DocOp {
    /// Checks all limits.
    ///
    /// # Errors
    /// `Invalid` if one is broken; `TooLarge` for a value over 64 KiB.
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

/// Returns the error for a store that has no room for another document.
pub(crate) fn too_many() -> Error {
    Error::new(ErrorKind::StoreFull, format!("the store has {DOCS_MAX} documents, which is the limit"))
        .with_hint("remove schedules or topics that are not needed")
}
