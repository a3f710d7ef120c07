//! A primary, its replicas, and the sentinels that watch them.

use std::{fmt::Write as _, fs};

use super::{
    Server,
    acl::{PASSWORD, USER},
    free_port, own_prefix,
};

/// The name that the sentinels watch the primary by.
pub(crate) const SERVICE: &str = "jobs";

/// Asks a sentinel who the primary is.
const ASK: [&str; 3] = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];

/// The headings of the guide's rights that each server grants.
const RIGHTS: [&str; 3] = ["always", "behind sentinels", "for durability=replicated(n)"];

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
        Self::start_with(replicas, options, false)
    }

    /// The same, at the default timeouts: the primary is dead after half a minute.
    pub(crate) fn start_patient(replicas: usize) -> Self {
        Self::start_with(replicas, &[], true)
    }

    fn start_with(replicas: usize, options: &[&str], is_patient: bool) -> Self {
        let primary = Server::listening(options);
        let port = primary.port().to_string();
        let mut servers = vec![primary];
        for _ in 0..replicas {
            servers.push(Server::listening(&[&["--replicaof", "127.0.0.1", &port], options].concat()));
        }
        for server in &mut servers {
            server.admit(&RIGHTS);
        }
        servers[0].until_has_replicas(replicas);
        let sentinels: Vec<_> = (0..3).map(|at| sentinel(&port, at, is_patient)).collect();
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
        let port = port_in(&self.sentinels[0].say(&ASK))?;
        self.servers.iter().position(|server| server.port() == port)
    }

    /// A number that grows with each failover.
    pub(crate) fn failovers(&self) -> u64 {
        let told = self.sentinels[0].say(&["SENTINEL", "MASTER", SERVICE]);
        let mut lines = told.lines().skip_while(|line| *line != "config-epoch").skip(1);
        lines
            .next()
            .and_then(|line| line.parse().ok())
            .expect("a sentinel tells the number of the last failover")
    }

    /// Makes another server the primary, which the first one does not hear of; the rest are replicas of the new one.
    pub(crate) fn replace_unheard(&self, new: usize) {
        let port = self.servers[new].port().to_string();
        for sentinel in &self.sentinels {
            sentinel.say(&["SENTINEL", "REMOVE", SERVICE]);
        }
        self.servers[new].until_says(&["REPLICAOF", "NO", "ONE"], |answer| answer.starts_with("OK"));
        for (_, server) in self.servers.iter().enumerate().skip(1).filter(|(at, _)| *at != new) {
            server.until_says(&["REPLICAOF", "127.0.0.1", &port], |answer| answer.starts_with("OK"));
        }
        self.servers[new].until_has_replicas(self.servers.len() - 2);
        for sentinel in &self.sentinels {
            let said = sentinel.say(&["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", &port, "2"]);
            assert_eq!(said, "OK");
        }
    }

    /// Comes back when all sentinels name another primary than this one; answers which.
    pub(crate) fn until_replaced(&self, old: usize) -> usize {
        let old = self.servers[old].port();
        for sentinel in &self.sentinels {
            sentinel.until_says(&ASK, |named| port_in(named).is_some_and(|port| port != old));
        }
        self.primary().expect("one of the servers is the primary")
    }
}

/// The port in a sentinel's answer to [`ASK`].
fn port_in(named: &str) -> Option<u16> {
    named.lines().nth(1)?.parse().ok()
}

/// The first one leads: two at once would make primaries of two replicas, one after the other.
fn sentinel(primary_port: &str, at: usize, is_patient: bool) -> Server {
    let (quorum, down_after_ms) = match at {
        0 => (QUORUM, 1_000),
        1 => (QUORUM + 1, 1_000),
        _ => (QUORUM + 1, 4_000),
    };
    Server::launch(free_port(), |folder| {
        let mut text = String::new();
        let mut line = |words: &str| writeln!(text, "sentinel {words}").expect("text takes text");
        line(&format!("monitor {SERVICE} 127.0.0.1 {primary_port} {quorum}"));
        // By default, half a minute.
        let down_after_ms = if is_patient { down_after_ms + 29_000 } else { down_after_ms };
        line(&format!("down-after-milliseconds {SERVICE} {down_after_ms}"));
        if !is_patient {
            line(&format!("failover-timeout {SERVICE} 3000"));
        }
        let file = folder.join("sentinel.conf");
        fs::write(&file, text).expect("its folder takes files");
        vec![file.display().to_string(), "--sentinel".to_owned()]
    })
}
