//! Makes the fresh stores of bench, and removes them.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use punctual::{
    Client,
    store::{Keep, QueueSettings},
};

use super::{QUEUE, reference, server::Server};

/// What the keys of a store begin with unless its address says otherwise.
const PREFIX: &str = "pq";

/// How long the removal of a folder is tried.
const REMOVE_MAX: Duration = Duration::from_secs(10);
/// Between two tries.
const REMOVE_AGAIN: Duration = Duration::from_millis(20);

/// Where fresh stores are made.
pub(super) enum Place {
    Memory,
    Sqlite {
        shown: String,
        folder: tempfile::TempDir,
        query: String,
    },
    /// Fresh prefixes on one server.
    Redis {
        url: String,
        /// The address without its password.
        shown: String,
        /// What all of them begin with.
        prefix: String,
        server: Server,
    },
}

impl Place {
    pub(super) async fn new(url: &str) -> Result<Self> {
        if url == "memory:" {
            return Ok(Self::Memory);
        }
        if ["redis:", "rediss:", "redis+unix:"].iter().any(|scheme| url.starts_with(scheme)) {
            // Says in our own words what is wrong with the address or the server, before anything is measured.
            let shown = Client::connect(url).await?.store().url().to_owned();
            let server = Server::connect(url).await?;
            return Ok(Self::Redis { url: url.to_owned(), shown, prefix: prefix_beside(url), server });
        }
        let Some(rest) = url.strip_prefix("sqlite:") else {
            bail!("bench measures sqlite:, redis: and memory: stores, not {}", scheme(url))
        };
        let (path, query) =
            rest.split_once('?').map_or((rest, String::new()), |(path, query)| (path, format!("?{query}")));
        let beside = Path::new(path).parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = tempfile::Builder::new()
            .prefix("punctual-bench-")
            .tempdir_in(beside)
            .with_context(|| format!("could not make a folder in {}", beside.display()))?;
        Ok(Self::Sqlite { shown: url.to_owned(), folder, query })
    }

    /// The address that was given, as it may be shown.
    pub(super) fn shown(&self) -> &str {
        match self {
            Self::Memory => "memory:",
            Self::Sqlite { shown, .. } | Self::Redis { shown, .. } => shown,
        }
    }

    /// Where the files are, if there are files.
    pub(super) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Memory | Self::Redis { .. } => None,
            Self::Sqlite { folder, .. } => Some(folder.path()),
        }
    }

    /// Returns the server of the stores and the prefix of all keys, if there is a server.
    pub(super) fn server(&self) -> Option<(&Server, &str)> {
        match self {
            Self::Redis { server, prefix, .. } => Some((server, prefix)),
            Self::Memory | Self::Sqlite { .. } => None,
        }
    }

    pub(super) fn file(&self, name: &str) -> Option<PathBuf> {
        self.folder().map(|folder| folder.join(format!("{name}.db")))
    }

    /// A client of a fresh store; `keep` is the retention of done jobs.
    pub(super) async fn fresh(&self, name: &str, keep: Keep) -> Result<Client> {
        let client = match self {
            Self::Memory => Client::connect("memory:").await?,
            Self::Redis { url, prefix, .. } => {
                let and = if url.contains('?') { '&' } else { '?' };
                Client::connect(&format!("{url}{and}prefix={prefix}{name}")).await?
            }
            Self::Sqlite { folder, query, .. } => {
                Client::connect(&format!(
                    "sqlite:{}{query}",
                    folder.path().join(format!("{name}.db")).display()
                ))
                .await?
            }
        };
        client.queue(QUEUE).set(QueueSettings { done: keep, ..QueueSettings::default() }).await?;
        Ok(client)
    }

    /// Bytes that the store of this name has in use: pages of its file, or memory of a server that does nothing else.
    pub(super) async fn bytes(&self, name: &str) -> Result<Option<u64>> {
        Ok(match self {
            Self::Memory => None,
            Self::Sqlite { .. } => match self.file(name).filter(|file| file.exists()) {
                Some(file) => Some(reference::size(&file)?.cast_unsigned()),
                None => Some(0),
            },
            Self::Redis { server, .. } => Some(server.memory().await?),
        })
    }

    /// Removes the store of this name once it is measured: the next one is to find the memory that it takes.
    pub(super) async fn forget(&self, name: &str) -> Result<()> {
        match self {
            Self::Redis { server, prefix, .. } => server.remove(&format!("{prefix}{name}:")).await,
            Self::Memory | Self::Sqlite { .. } => Ok(()),
        }
    }

    /// Removes whatever was made here.
    pub(super) async fn remove(self) -> Result<()> {
        match self {
            Self::Memory => Ok(()),
            Self::Sqlite { folder, .. } => {
                let begin = Instant::now();
                // A store that was given up in the midst of a call still writes what it had begun.
                while fs::remove_dir_all(folder.path()).is_err() && begin.elapsed() < REMOVE_MAX {
                    tokio::time::sleep(REMOVE_AGAIN).await;
                }
                let path = folder.path().to_owned();
                folder
                    .close()
                    .or_else(|error| if path.exists() { Err(error) } else { Ok(()) })
                    .context("could not remove the folder of the measurements")
            }
            Self::Redis { server, prefix, .. } => server.remove(&prefix).await,
        }
    }
}

/// Makes a prefix below that of the address, so that a user that can write only there can measure there.
fn prefix_beside(url: &str) -> String {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let named = query.split('&').rev().find_map(|option| option.strip_prefix("prefix="));
    format!("{}:bench-{:08x}-", named.unwrap_or(PREFIX), fastrand::u32(..))
}

/// The part of an address that holds no password.
fn scheme(url: &str) -> String {
    url.split(':').next().unwrap_or_default().chars().take(32).collect()
}
