//! Where the jobs of a drill are: a file, a store that somebody named, or a server of the drill's own.

use std::path::Path;

use crate::server::Server;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A file of SQLite in the drill's folder.
    File,
    /// The store at this address, which must be empty.
    Store(String),
    /// A server of Redis, started for the drill.
    Server(Fsync),
}

/// When a server's log of writes is on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fsync {
    /// Before each answer.
    Always,
    /// Once a second.
    EverySec,
}

impl Fsync {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::EverySec => "everysec",
        }
    }

    const fn durability(self) -> &'static str {
        match self {
            Self::Always => "full",
            Self::EverySec => "fast",
        }
    }
}

/// A store that is there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) url: String,
    /// Ends with the drill.
    pub(crate) server: Option<Server>,
}

impl Place {
    pub(crate) fn make(wanted: &Wanted, dir: &Path) -> Self {
        match wanted {
            Wanted::File => Self { url: format!("sqlite:{}", dir.join("jobs.db").display()), server: None },
            Wanted::Store(url) => Self { url: url.clone(), server: None },
            Wanted::Server(fsync) => {
                let server = Server::start(&[
                    "--appendonly",
                    "yes",
                    "--appendfsync",
                    fsync.text(),
                    // One file for as long as the drill lasts.
                    "--auto-aof-rewrite-percentage",
                    "0",
                ]);
                let url = format!("{}&durability={}", server.url(), fsync.durability());
                Self { url, server: Some(server) }
            }
        }
    }
}
