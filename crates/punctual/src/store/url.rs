//! Opens a store by its address. The only place outside of a store's own files that names a concrete one.

use std::sync::Arc;

use super::{Store, clock::Clock, memory::MemoryStore};
use crate::error::{Error, ErrorKind, Result};

/// Opens the store at `url`: `memory:`, which ends with its last handle.
///
/// # Errors
/// `Unsupported` for any other scheme.
#[expect(clippy::unused_async, reason = "a store on a disk or behind a network takes its time to open")]
pub async fn connect(url: &str) -> Result<Arc<dyn Store>> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match (scheme, rest) {
        ("memory", "") => Ok(Arc::new(MemoryStore::new(Clock::System))),
        ("memory", _) => Err(Error::invalid("a memory: store has no name").with_hint("write memory:")),
        _ => {
            // The rest may hold a password.
            let shown: String = scheme.chars().take(32).collect();
            Err(Error::new(ErrorKind::Unsupported, format!("there is no store for the scheme {shown:?}"))
                .with_hint("write sqlite:jobs.db or memory:"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_scheme_is_named_without_what_follows_it() {
        for url in ["postgres://ana:secret@db/jobs", "nonsense", ""] {
            let error = connect(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert_eq!(connect("memory:").await.unwrap().url(), "memory:");
    }
}
