//! Opens a store by its address. Only this file and the stores themselves name concrete stores.

#[cfg(any(feature = "redis", feature = "http"))]
use std::borrow::Cow;
#[cfg(feature = "sqlite")]
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "http")]
use super::http::HttpStore;
#[cfg(feature = "redis")]
use super::redis::RedisStore;
#[cfg(feature = "sqlite")]
use super::{
    Durability,
    sqlite::{SqliteOptions, SqliteStore},
};
use super::{Store, clock::Clock, memory::MemoryStore};
use crate::core::error::{Error, ErrorKind, Result};

/// Opens the store at `url`.
///
/// Write `sqlite:PATH` for a file, `redis://HOST` for a server of Redis (feature `redis`), `https://HOST` for a server of punctual
/// (feature `http`), or `memory:` for a store that ends with its last handle.
///
/// Options of a file follow after `?`, separated by `&`: `durability=full` (default) or `durability=fast`; `mode=rwc`
/// (default), which creates a file that does not exist, `mode=rw`, which does not, or `mode=ro`, which is read-only;
/// `cache_mib=64` (default), the page cache of each connection, 1 to 4,096 MiB.
///
/// # Errors
/// `Unsupported` for any other scheme, or if the store is not built in. `Invalid` for a path or an option that cannot
/// be parsed. `Unavailable` if `mode=rw` or `mode=ro` finds no file. Otherwise any error of the store.
pub async fn connect(url: &str) -> Result<Arc<dyn Store>> {
    connect_by(url, Clock::System).await
}

/// Opens the store with another clock than the system's.
#[cfg_attr(
    not(any(feature = "sqlite", feature = "redis", feature = "http")),
    expect(clippy::unused_async, reason = "a store on a disk or behind a network takes its time to open")
)]
pub(crate) async fn connect_by(url: &str, clock: Clock) -> Result<Arc<dyn Store>> {
    if url.trim() != url {
        return Err(blank_end());
    }
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match (scheme, rest) {
        ("memory", "") => Ok(Arc::new(MemoryStore::new(clock))),
        #[cfg(feature = "sqlite")]
        ("sqlite", rest) => {
            let (path, mut options) = sqlite(rest)?;
            options.clock = clock;
            // Opening can wait for a disk or for another process.
            let open = tokio::task::spawn_blocking(move || SqliteStore::open(path, options));
            let store = open.await.map_err(|e| {
                Error::new(ErrorKind::Closed, "the runtime ended while the store was opened").with_source(e)
            })?;
            Ok(Arc::new(store?))
        }
        #[cfg(feature = "redis")]
        (
            "redis" | "redis+unix" | "redis+sentinel" | "redis+cluster" | "rediss" | "rediss+sentinel"
            | "rediss+cluster",
            _,
        ) => Ok(Arc::new(RedisStore::open(url, clock).await?)),
        // The clock is that of the server's store.
        #[cfg(feature = "http")]
        ("http" | "https", _) => Ok(Arc::new(HttpStore::open(url).await?)),
        ("memory", _) => Err(Error::invalid("a memory: store has no name").with_hint("write memory:")),
        _ => {
            // The rest may contain a password.
            let shown: String = scheme.chars().take(32).collect();
            let error =
                Error::new(ErrorKind::Unsupported, format!("there is no store for the scheme {shown:?}"));
            Err(error.with_hint(match scheme {
                "http" | "https" => "build punctual with the cargo feature `http`",
                _ => "write sqlite:jobs.db or memory:",
            }))
        }
    }
}

/// Makes the error for an address that begins or ends with white space. It would be part of the name of a file, and another store.
fn blank_end() -> Error {
    Error::invalid("the address of the store begins or ends with white space").with_hint(
        "remove it; a line of a file or a secret may end with a line break, or with a CR of Windows",
    )
}

/// Returns an address in whose options a `+` stands for itself, as it does before them. A parser of forms reads it as a space.
#[cfg(any(feature = "redis", feature = "http"))]
pub(crate) fn with_plain_plus(url: &str) -> Cow<'_, str> {
    match url.split_once('?') {
        Some((base, options)) if options.contains('+') => {
            Cow::Owned(format!("{base}?{}", options.replace('+', "%2B")))
        }
        _ => Cow::Borrowed(url),
    }
}

/// Returns whether the file of an address exists; `false` for a store that is no file.
#[cfg(feature = "testing")]
pub(crate) fn is_there(url: &str) -> Result<bool> {
    match url.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", rest)) => Ok(sqlite(rest)?.0.exists()),
        _ => Ok(false),
    }
}

/// A value of an option in the address of a file, and what it sets.
#[cfg(feature = "sqlite")]
pub struct SqliteOption {
    /// The name.
    pub name: &'static str,
    /// The value.
    pub value: &'static str,
    /// Sets it.
    pub set: fn(&mut SqliteOptions),
}

/// The options in the address of a file that take words. `cache_mib` takes a number.
#[cfg(feature = "sqlite")]
pub const SQLITE_OPTIONS: [SqliteOption; 5] = [
    SqliteOption { name: "durability", value: "full", set: |o| o.durability = Durability::Full },
    SqliteOption { name: "durability", value: "fast", set: |o| o.durability = Durability::Fast },
    SqliteOption { name: "mode", value: "ro", set: |o| (o.create, o.read_only) = (false, true) },
    SqliteOption { name: "mode", value: "rw", set: |o| (o.create, o.read_only) = (false, false) },
    SqliteOption { name: "mode", value: "rwc", set: |o| (o.create, o.read_only) = (true, false) },
];

/// Returns the path in the address of a file, without its options; `None` for a store that is no file.
#[cfg(feature = "sqlite")]
pub(super) fn file_of(url: &str) -> Result<Option<PathBuf>> {
    url.strip_prefix("sqlite:").map(|rest| sqlite(rest).map(|(path, _)| path)).transpose()
}

/// Parses `PATH[?durability=full|fast][&mode=ro|rw|rwc][&cache_mib=N]`.
#[cfg(feature = "sqlite")]
fn sqlite(rest: &str) -> Result<(PathBuf, SqliteOptions)> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    // As in other URLs, three slashes are an absolute path after an empty host. With two, a folder would be the host.
    let path = match path.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => {
            return Err(Error::invalid("a sqlite: store has no host").with_hint(
                "write sqlite:jobs.db for a path from here, sqlite:/var/lib/jobs.db for an absolute one",
            ));
        }
        None => path,
    };
    if path.is_empty() || path == ":memory:" {
        return Err(Error::invalid("a sqlite: store needs a file")
            .with_hint("write sqlite:jobs.db; for a store without a file, memory:"));
    }
    if path.trim_end() != path {
        return Err(blank_end());
    }
    let mut options = SqliteOptions::default();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match SQLITE_OPTIONS.iter().find(|known| (known.name, known.value) == (name, value)) {
            Some(known) => (known.set)(&mut options),
            None if name == "cache_mib"
                && let Ok(mib) = value.parse() =>
            {
                options.cache_mib = mib;
            }
            None => {
                let shown: String = option.chars().take(64).collect();
                let known = SQLITE_OPTIONS.map(|known| format!("{}={}", known.name, known.value)).join(", ");
                return Err(Error::invalid(format!("{shown:?} is not an option of a sqlite: store"))
                    .with_hint(format!("write {known} or cache_mib=64")));
            }
        }
    }
    Ok((PathBuf::from(path), options))
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

    /// A variable from a file with CRLF, or a secret with a line break at its end, names no other store.
    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn an_address_that_ends_with_white_space_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db").display().to_string();
        for url in [
            format!("sqlite:{path}\r"),
            format!("sqlite:{path}\n"),
            format!("sqlite:{path} "),
            format!(" sqlite:{path}"),
            format!("sqlite:{path}\r?mode=rwc"),
            format!("sqlite:{path}?mode=rwc\r\n"),
            "memory:\n".to_owned(),
            "redis://127.0.0.1:1/0\n".to_owned(),
            "http://127.0.0.1:1\r".to_owned(),
        ] {
            let error = connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url:?}: {error}");
            assert!(error.to_string().contains("white space"), "{url:?}: {error}");
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[cfg(any(feature = "redis", feature = "http"))]
    #[test]
    fn a_plus_of_an_option_is_a_plus() {
        assert_eq!(
            with_plain_plus("redis+unix:///a+b?pass=c+d%2B&ca=/e+f"),
            "redis+unix:///a+b?pass=c%2Bd%2B&ca=/e%2Bf"
        );
        assert_eq!(with_plain_plus("redis://:a+b@h/0"), "redis://:a+b@h/0");
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_path_and_its_options_are_read() {
        let read = |rest: &str| {
            let (path, options) = sqlite(rest).map_err(|e| e.kind())?;
            Ok((path.display().to_string(), options.durability, options.create))
        };
        assert_eq!(read("jobs.db"), Ok(("jobs.db".into(), Durability::Full, true)));
        assert_eq!(read("/var/jobs.db?durability=fast"), Ok(("/var/jobs.db".into(), Durability::Fast, true)));
        assert_eq!(
            read("///var/jobs.db?durability=full"),
            Ok(("/var/jobs.db".into(), Durability::Full, true))
        );
        assert_eq!(read("jobs.db?mode=rw&durability=fast"), Ok(("jobs.db".into(), Durability::Fast, false)));
        assert_eq!(read("jobs.db?mode=rw&mode=rwc"), Ok(("jobs.db".into(), Durability::Full, true)));
        assert!(sqlite("jobs.db?mode=ro").unwrap().1.read_only);
        assert_eq!(sqlite("jobs.db?cache_mib=8").unwrap().1.cache_mib, 8);
        for wrong in [
            "",
            ":memory:",
            "//host/jobs.db",
            "jobs.db?durability=none",
            "jobs.db?mode=r",
            "jobs.db?cache_mib=x",
        ] {
            assert_eq!(read(wrong), Err(ErrorKind::Invalid), "{wrong}");
        }
    }
}
