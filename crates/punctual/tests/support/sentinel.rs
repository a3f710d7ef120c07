//! A primary, its replicas, and the sentinels that watch them.

use std::{fmt::Write as _, fs};

use super::{
    Server,
    acl::{PASSWORD, USER},
    free_port, own_prefix,
};

/// The name that the sentinels watch the primary by.
pub(crate) const SERVICE: &str = "jobs";

/// So many sentinels must agree that the primary is dead.
const QUORUM: usize = 2;

#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The first is the primary in the beginning.
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts a primary with so many replicas, each with these options, and three sentinels; all know each other.
    pub(crate) fn start(replicas: usize, options: &[&str]) -> Self {
        let primary = Server::listening(options);
        let port = primary.port().to_string();
        let mut servers = vec![primary];
        for _ in 0..replicas {
            servers.push(Server::listening(&[&["--replicaof", "127.0.0.1", &port], options].concat()));
        }
        for server in &mut servers {
            server.admit(&["always", "behind sentinels", "for durability=replicated(n)"]);
        }
        let attached = format!("connected_slaves:{replicas}\r\n");
        servers[0].until_says(&["INFO", "replication"], |info| {
            info.contains(&attached) && info.matches("state=online").count() == replicas
        });
        let sentinels: Vec<_> = (0..3).map(|_| sentinel(&port)).collect();
        for sentinel in &sentinels {
            let known = format!("slaves={replicas},sentinels=3");
            sentinel.until_says(&["INFO", "sentinel"], |info| info.contains(&known));
        }
        Self { servers, sentinels }
    }

    /// The address of a store of its own.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
        format!("redis+sentinel://{USER}:{PASSWORD}@{}/{SERVICE}?{}", hosts.join(","), own_prefix())
    }

    /// The place of the primary that the sentinels name.
    pub(crate) fn primary(&self) -> Option<usize> {
        let named = self.sentinels[0].say(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let port = named.lines().nth(1)?.parse::<u16>().ok()?;
        self.servers.iter().position(|server| server.port() == port)
    }
}

fn sentinel(primary_port: &str) -> Server {
    Server::launch(free_port(), |folder| {
        let mut text = String::new();
        let mut line = |words: &str| writeln!(text, "sentinel {words}").expect("text takes text");
        line(&format!("monitor {SERVICE} 127.0.0.1 {primary_port} {QUORUM}"));
        line(&format!("down-after-milliseconds {SERVICE} 400"));
        line(&format!("failover-timeout {SERVICE} 3000"));
        let file = folder.join("sentinel.conf");
        fs::write(&file, text).expect("its folder takes files");
        vec![file.display().to_string(), "--sentinel".to_owned()]
    })
}
