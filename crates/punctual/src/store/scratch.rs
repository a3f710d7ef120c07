//! Stores that a test makes and removes. A store with foreign content is neither opened nor removed.
//!
//! Three checks protect the jobs of a running program from a mistyped address. The address must be a test's: a file
//! that does not exist yet, or on Redis a prefix that begins with `test`. A store that is opened for the first time
//! must be empty, and gets a mark. Only a store with the mark is opened again or removed.

#[cfg(feature = "sqlite")]
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "redis")]
use super::redis::RedisStore;
#[cfg(feature = "sqlite")]
use super::sqlite::SqliteStore;
use super::{Doc, DocOp, DocReply, Precondition, Store, clock::Clock, url};
use crate::core::error::{Error, ErrorKind, Result};

/// The document that marks a test's store.
const MARK: &str = "$test";
/// The beginning of the prefix of a test's store on Redis.
#[cfg(feature = "redis")]
const PREFIX: &str = "test";

/// Opens the store of a test with its own clock, and marks it if it is new.
///
/// # Errors
/// `Conflict` for a store that may not be a test's; otherwise as [`url::connect`].
pub(crate) async fn open(address: &str, clock: Clock) -> Result<Arc<dyn Store>> {
    let was_there = url::is_there(address)?;
    let store = url::connect_by(address, clock).await?;
    if is_marked(&*store).await? {
        return Ok(store);
    }
    if was_there || !is_named_for_tests(&*store) || !is_empty(&*store).await? {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("{} is not a store that tests made", store.url()),
        )
        .with_hint("name a file that is not there, or on Redis an empty prefix=test…"));
    }
    let precondition = Precondition::IfAbsent;
    store.doc(&DocOp::Put { key: MARK.to_owned(), precondition, value: b"made by a test".to_vec() }).await?;
    Ok(store)
}

/// Removes the store of a test with all its contents.
///
/// # Errors
/// `Conflict` for a store without the mark: nothing was removed. `Unavailable` if a part could not be removed; the
/// call can be repeated.
pub(crate) async fn remove(store: Arc<dyn Store>) -> Result<()> {
    if !is_marked(&*store).await? {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("{} is not a store that tests made", store.url()),
        ));
    }
    #[cfg(feature = "sqlite")]
    if let Some(path) = of::<SqliteStore>(&*store).map(|store| store.path().to_owned()) {
        let removal = tokio::task::spawn_blocking(move || {
            drop(store);
            remove_file_of(&path)
        });
        return removal.await.unwrap_or_else(|e| Err(std::io::Error::other(e))).map_err(|e| {
            Error::new(ErrorKind::Unavailable, "could not remove the files of a store").with_source(e)
        });
    }
    #[cfg(feature = "redis")]
    if let Some(store) = of::<RedisStore>(&*store) {
        return store.remove_all().await;
    }
    // A store in memory ends with its last handle.
    Ok(())
}

#[cfg(any(feature = "sqlite", feature = "redis"))]
fn of<T: 'static>(store: &dyn Store) -> Option<&T> {
    store.as_any()?.downcast_ref()
}

async fn is_marked(store: &dyn Store) -> Result<bool> {
    Ok(matches!(store.doc(&DocOp::Get { key: MARK.to_owned() }).await?, DocReply::Is(Some(Doc { .. }))))
}

/// Returns whether the address is a test's. A new file needs no special name.
#[cfg_attr(not(feature = "redis"), expect(clippy::missing_const_for_fn, reason = "only Redis has prefixes"))]
fn is_named_for_tests(store: &dyn Store) -> bool {
    #[cfg(feature = "redis")]
    if let Some(store) = of::<RedisStore>(store) {
        return store.prefix().starts_with(PREFIX);
    }
    let _ = store;
    true
}

/// Returns whether it has no queue, no job and no document.
async fn is_empty(store: &dyn Store) -> Result<bool> {
    let all = DocOp::List { prefix: String::new(), after: None, limit: 1 };
    let has_docs = matches!(store.doc(&all).await?, DocReply::Page { docs, .. } if !docs.is_empty());
    Ok(!has_docs && store.queues(None).await?.is_empty() && store.count(None).await?.total() == 0)
}

/// Removes the database, all files beside it, and the folder for notifications between processes.
#[cfg(feature = "sqlite")]
fn remove_file_of(path: &Path) -> std::io::Result<()> {
    use super::sqlite::beside;
    let gone = |removed: std::io::Result<()>| match removed {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    // The database is last, because it has the mark.
    gone(std::fs::remove_dir_all(beside(path, "-bell")))?;
    for suffix in ["-ballast", "-lock", "-open", "-shm", "-wal"] {
        gone(std::fs::remove_file(beside(path, suffix)))?;
    }
    gone(std::fs::remove_file(path))
}
