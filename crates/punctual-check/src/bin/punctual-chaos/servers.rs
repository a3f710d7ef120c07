//! Several servers of Redis with two replicas for whoever has jobs, how one of them is killed, and how all connections are cut.

use std::{
    thread,
    time::{Duration, Instant},
};

use punctual_check::monotonic_ns;

use crate::{
    drill::Outcome,
    server::{Cluster, Sentinels, Server, acl::USER},
};

/// The slot that all keys of a store are in.
const SLOT: u16 = 13_907;
/// Keys that move at once.
const KEYS: usize = 3;
/// How many replicas who has the jobs has.
const REPLICAS: usize = 2;
/// By when one of them has taken over.
const TAKE_OVER_MAX: Duration = Duration::from_mins(1);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// Servers of a drill.
#[derive(Debug)]
pub(crate) enum Servers {
    /// Watched by sentinels; the number of the failover after the last kill, and whether there was one without a kill before it.
    Service { service: Sentinels, last: u64, was_restless: bool },
    /// A cluster, and its groups of servers: a primary and its replicas, as they were in the beginning. The first group is the
    /// one that is harmed; where jobs are moved, it has them, and the second one gets them.
    Cluster { cluster: Cluster, groups: Vec<Vec<usize>> },
}

impl Servers {
    pub(crate) fn service() -> Self {
        Self::watched(Sentinels::start(REPLICAS, &[]))
    }

    /// Watched at the default timeouts.
    pub(crate) fn patient_service() -> Self {
        Self::watched(Sentinels::start_patient(REPLICAS))
    }

    fn watched(service: Sentinels) -> Self {
        Self::Service { last: service.failovers(), service, was_restless: false }
    }

    pub(crate) fn cluster() -> Self {
        Self::two_groups(&[])
    }

    /// The same, at the default timeout.
    pub(crate) fn patient_cluster() -> Self {
        Self::two_groups(&["--cluster-node-timeout", "15000"])
    }

    fn two_groups(options: &[&str]) -> Self {
        let cluster = Cluster::start_with([REPLICAS, 0, REPLICAS], options);
        Self::Cluster { cluster, groups: vec![vec![2, 5, 6], vec![0, 3, 4]] }
    }

    /// A cluster in which each server has replicas, for a store in several shards.
    pub(crate) fn whole_cluster() -> Self {
        let cluster = Cluster::start_with([REPLICAS; 3], &[]);
        let group =
            |at: usize| std::iter::once(at).chain((0..REPLICAS).map(|n| 3 + at * REPLICAS + n)).collect();
        Self::Cluster { cluster, groups: (0..3).map(group).collect() }
    }

    /// Makes another group the one that is harmed, so many places on.
    pub(crate) fn rotate(&mut self, places: usize) {
        if let Self::Cluster { groups, .. } = self {
            let number = groups.len();
            groups.rotate_left(places % number);
        }
    }

    /// Cuts the connections of programs to the servers. Those of replicas and sentinels stay: a primary that sentinels do not
    /// reach is replaced while it still takes writes.
    pub(crate) fn cut_connections(&mut self) {
        for server in self.all() {
            server.say(&["CLIENT", "KILL", "USER", USER]);
        }
    }

    /// Whether sentinels have replaced a primary that nobody killed, be it that the same one is the primary again.
    pub(crate) fn have_replaced_by_themselves(&self) -> bool {
        match self {
            Self::Service { service, last, was_restless } => *was_restless || service.failovers() != *last,
            Self::Cluster { .. } => false,
        }
    }

    /// The address of a store of its own.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Service { service, .. } => service.url(),
            Self::Cluster { cluster, .. } => cluster.url(),
        }
    }

    /// Hands the jobs over to another primary, where there is another one.
    pub(crate) fn reshard(&mut self) -> Outcome<()> {
        let Self::Cluster { cluster, groups } = self else { return Ok(()) };
        let (from, to) = (primary(&cluster.servers, &groups[0])?, primary(&cluster.servers, &groups[1])?);
        cluster.begin_move(SLOT, from, to);
        let mut moved = 0;
        loop {
            let some = cluster.move_keys(SLOT, from, to, KEYS);
            if some == 0 {
                break;
            }
            moved += some;
        }
        cluster.end_move(SLOT, to);
        eprintln!("moved slot {SLOT} with {moved} keys from server {from} to server {to}");
        groups.swap(0, 1);
        // As an operator must: nobody else waits for the replicas of what moved.
        cluster.servers[to].until_replicated();
        Ok(())
    }

    /// Kills who has the jobs, and comes back when another one has them and the killed one is its replica; answers since when
    /// it may have been dead.
    pub(crate) fn fail_over(&mut self) -> Outcome<u64> {
        let group = match self {
            Self::Service { service, .. } => (0..service.servers.len()).collect(),
            Self::Cluster { groups, .. } => groups[0].clone(),
        };
        if let Self::Service { service, last, was_restless } = self {
            *was_restless |= service.failovers() != *last;
        }
        let old = primary(self.all(), &group)?;
        let (since, begin) = (monotonic_ns(), Instant::now());
        self.all()[old].kill();
        let new = match self {
            Self::Service { service, last, .. } => {
                let new = service.until_replaced(old);
                *last = service.failovers();
                new
            }
            Self::Cluster { cluster, .. } => primary(&cluster.servers, &group)?,
        };
        eprintln!("killed server {old}; server {new} took over after {:.1} s", begin.elapsed().as_secs_f64());
        let servers = self.all();
        servers[old].restart();
        until_whole(servers, &group)?;
        Ok(since)
    }

    fn all(&mut self) -> &mut [Server] {
        match self {
            Self::Service { service, .. } => &mut service.servers,
            Self::Cluster { cluster, .. } => &mut cluster.servers,
        }
    }
}

/// Cuts the connections of programs to a server that only they talk to.
pub(crate) fn cut_connections(server: &Server) {
    server.say(&["CLIENT", "KILL", "TYPE", "normal"]);
}

/// Comes back when all replicas follow one primary, whoever that is by now.
fn until_whole(servers: &[Server], group: &[usize]) -> Outcome<()> {
    let begin = Instant::now();
    while begin.elapsed() < TAKE_OVER_MAX {
        if group.iter().any(|&at| servers[at].is_primary() && servers[at].has_replicas(REPLICAS)) {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    Err("not all are there again".into())
}

/// Who takes writes, or will.
fn primary(servers: &[Server], group: &[usize]) -> Outcome<usize> {
    let begin = Instant::now();
    while begin.elapsed() < TAKE_OVER_MAX {
        if let Some(&at) = group.iter().find(|&&at| servers[at].is_primary()) {
            return Ok(at);
        }
        thread::sleep(LOOK);
    }
    Err("nobody took over".into())
}
