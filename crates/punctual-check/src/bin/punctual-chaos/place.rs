//! Where the jobs of a drill are: a file, a store that the command line names, or a server that the drill starts.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use crate::{process::Process, server::Server, servers::Servers};

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
    /// A server of punctual in front of a file, a process of its own.
    Http,
    /// A cluster of Redis, started for the drill; two of its primaries have two replicas each.
    Cluster,
    /// The same, and each of its three primaries has.
    WholeCluster,
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
pub(crate) struct Place {
    pub(crate) url: String,
    /// Ends with the drill, as do the others.
    pub(crate) server: Option<Server>,
    pub(crate) servers: Option<Servers>,
    pub(crate) gateway: Option<Gateway>,
}

impl Place {
    const fn at(url: String) -> Self {
        Self { url, server: None, servers: None, gateway: None }
    }

    /// On servers that are there.
    pub(crate) fn on(servers: Servers) -> Self {
        let url = servers.url() + "&durability=replicated(1)";
        Self { servers: Some(servers), ..Self::at(url) }
    }

    pub(crate) fn make(wanted: &Wanted, dir: &Path) -> Self {
        let at = Self::at;
        let file = || format!("sqlite:{}", dir.join("jobs.db").display());
        match wanted {
            Wanted::File => at(file()),
            Wanted::Http => {
                let gateway = Gateway::start(file(), dir).expect("a process can be started");
                let url = gateway.url();
                Self { gateway: Some(gateway), ..at(url) }
            }
            Wanted::Store(url) => at(url.clone()),
            Wanted::Sentinel | Wanted::Cluster | Wanted::WholeCluster => {
                let servers = match wanted {
                    Wanted::Cluster => Servers::cluster(),
                    Wanted::WholeCluster => Servers::whole_cluster(),
                    _ => Servers::service(),
                };
                Self::on(servers)
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

/// A server of punctual, which can be killed and started again on the same port.
pub(crate) struct Gateway {
    behind: String,
    dir: PathBuf,
    addr: SocketAddr,
    process: Process,
}

impl Gateway {
    fn start(behind: String, dir: &Path) -> io::Result<Self> {
        // Free now; nothing else of the machine is given it soon.
        let addr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let process = Self::process(&behind, dir, addr)?;
        Ok(Self { behind, dir: dir.to_owned(), addr, process })
    }

    fn process(behind: &str, dir: &Path, addr: SocketAddr) -> io::Result<Process> {
        Process::start("gateway", behind, dir, "gateway".to_owned(), &[addr.to_string()])
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// SIGKILL, and the certainty that it is gone.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.process.kill()
    }

    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.process = Self::process(&self.behind, &self.dir, self.addr)?;
        Ok(())
    }
}
