//! A cluster of primaries.

use std::sync::OnceLock;

use super::{
    Server,
    acl::{PASSWORD, USER},
    free_port, own_prefix,
};

const SLOTS: u16 = 16_384;

/// The headings of the guide's rights that each server grants.
const RIGHTS: [&str; 4] =
    ["always", "in a cluster", "in a cluster, for `doctor`", "for durability=replicated(n)"];

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
    ids: Vec<String>,
}

impl Cluster {
    /// The one of this test binary, of three primaries.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(0))
    }

    /// Starts three primaries, each with a third of the slots, and so many replicas of the last one, which has the keys of
    /// shard 0.
    pub(crate) fn start(replicas: usize) -> Self {
        Self::start_with([0, 0, replicas], &[])
    }

    /// The same, with so many replicas of each, those of the first first, behind the primaries; and with more options.
    pub(crate) fn start_with(replicas: [usize; 3], more: &[&str]) -> Self {
        let primaries: Vec<_> =
            replicas.iter().enumerate().flat_map(|(at, n)| std::iter::repeat_n(at, *n)).collect();
        let n = 3 + primaries.len();
        let bus_ports: Vec<_> = (0..n).map(|_| free_port().to_string()).collect();
        // A server that a busy machine holds up for less is not taken for dead.
        let mut options = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        // Else a primary that has lost its replicas may be given those of another one, which the tests then wait for.
        options.extend(["--cluster-allow-replica-migration", "no"]);
        options.extend(more);
        options.push("--cluster-port");
        let mut servers: Vec<_> =
            bus_ports.iter().map(|port| Server::listening(&[&options[..], &[port]].concat())).collect();
        let ids = servers.iter().map(|server| server.say(&["CLUSTER", "MYID"])).collect();
        for server in &mut servers {
            server.admit(&RIGHTS);
        }
        for (at, server) in servers.iter().enumerate() {
            server.say(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            let (port, bus_port) = (server.port().to_string(), bus_ports[at].as_str());
            servers[0].say(&["CLUSTER", "MEET", "127.0.0.1", &port, bus_port]);
        }
        for (at, server) in servers.iter().take(3).enumerate() {
            let bound = |at: usize| SLOTS as usize * at / 3;
            let (first, last) = (bound(at).to_string(), (bound(at + 1) - 1).to_string());
            server.say(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        let cluster = Self { servers, ids };
        cluster.until_all_know(n);
        for (replica, primary) in cluster.servers[3..].iter().zip(primaries) {
            replica.say(&["CLUSTER", "REPLICATE", &cluster.ids[primary]]);
            replica.until_says(&["INFO", "replication"], |info| info.contains("master_link_status:up"));
        }
        // A primary counts them later than they count themselves.
        for (primary, n) in cluster.servers.iter().zip(replicas) {
            primary.until_has_replicas(n);
        }
        cluster
    }

    fn until_all_know(&self, n: usize) {
        let known = format!("cluster_known_nodes:{n}\r\n");
        for server in &self.servers {
            server.until_says(&["CLUSTER", "INFO"], |info| {
                let wished = ["cluster_state:ok", "cluster_slots_ok:16384", &known];
                wished.iter().all(|wished| info.contains(wished))
            });
        }
    }

    /// The address of a store of its own.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
        format!("redis+cluster://{USER}:{PASSWORD}@{}?{}", hosts.join(","), own_prefix())
    }

    /// Begins to hand a slot over.
    pub(crate) fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let set = |at: usize, how, other: usize| {
            let said =
                self.servers[at].say(&["CLUSTER", "SETSLOT", &slot.to_string(), how, &self.ids[other]]);
            assert_eq!(said, "OK");
        };
        set(to, "IMPORTING", from);
        set(from, "MIGRATING", to);
    }

    /// Hands keys over, as many as there are, but at most so many; answers how many.
    pub(crate) fn move_keys(&self, slot: u16, from: usize, to: usize, at_most: usize) -> usize {
        let (slot, at_most) = (slot.to_string(), at_most.to_string());
        // Quoted, since names of keys are bytes: `1) "punctual:{0}:board:views\x00w60"`.
        let keys = self.servers[from].say(&["--no-raw", "CLUSTER", "GETKEYSINSLOT", &slot, &at_most]);
        let keys: Vec<_> = keys.lines().filter_map(|line| Some(line.split_once(") ")?.1)).collect();
        if !keys.is_empty() {
            let head = format!("MIGRATE 127.0.0.1 {} \"\" 0 5000 KEYS", self.servers[to].port());
            let said = self.servers[from].say_line(&format!("{head} {}", keys.join(" ")));
            assert!(["OK", "NOKEY"].contains(&said.as_str()), "{said}");
        }
        keys.len()
    }

    /// Ends what [`begin_move`](Self::begin_move) began; no keys are left by now.
    pub(crate) fn end_move(&self, slot: u16, to: usize) {
        let slot = slot.to_string();
        // First who gets it, so that it is never with nobody.
        let others = (0..self.servers.len()).filter(|at| *at != to && self.servers[*at].is_primary());
        let order: Vec<_> = std::iter::once(to).chain(others).collect();
        for at in order {
            assert_eq!(self.servers[at].say(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]]), "OK");
        }
    }
}
