//! Where the jobs of a drill are: a file, a store that somebody named, or a server of the drill's own.

use std::path::Path;

use crate::{server::Server, servers::Servers};

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A file of SQLite in the drill's folder.
    File,
    /// The store at this address, which must be empty.
    Store(String),
    /// A server of Redis, started for the drill.
    Server(Fsync),
    /// A primary of Redis with two replicas, and sentinels, started for the drill.
    Sentinel,
    /// A cluster of Redis, started for the drill; two of its primaries have two replicas each.
    Cluster,
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
    /// Ends with the drill, as do the others.
    pub(crate) server: Option<Server>,
    pub(crate) servers: Option<Servers>,
}

impl Place {
    pub(crate) fn make(wanted: &Wanted, dir: &Path) -> Self {
        let at = |url| Self { url, server: None, servers: None };
        match wanted {
            Wanted::File => at(format!("sqlite:{}", dir.join("jobs.db").display())),
            Wanted::Store(url) => at(url.clone()),
            Wanted::Sentinel | Wanted::Cluster => {
                let servers =
                    if *wanted == Wanted::Cluster { Servers::cluster() } else { Servers::service() };
                let url = servers.url() + "&durability=replicated(1)";
                Self { servers: Some(servers), ..at(url) }
            }
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
                Self { server: Some(server), ..at(url) }
            }
        }
    }
}
