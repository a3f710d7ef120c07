//! The store for many machines: Redis or Valkey, one server, or several behind sentinels, or a cluster.
//!
//! Each verb is one script (`lua/*.lua`), which the server runs as one step; all its keys are named and in one slot. What
//! the scripts share, the keys and the layouts among it, stands in `lua/keys.lua`. Here they are called: arguments are
//! flat binary, limits are checked before, answers are read.
//!
//! What talks to the server lives on one thread per store: the connection that carries the verbs (`link`) and the one that
//! waits for work (`doorbell`). Both find their way by the shard's `route`.

mod act;
mod address;
mod audit;
mod bytes;
mod check;
mod confirm;
mod connection;
mod detour;
mod doctor;
mod doorbell;
mod enqueue;
mod fault;
mod info;
mod link;
mod node;
mod offset;
mod queue;
mod read;
mod record;
mod reply;
mod reserve;
mod route;
mod script;
mod scripts;
mod settings;
mod settle;
mod thread;
mod tls;

#[cfg(test)]
#[path = "../../tests/support/redis.rs"]
mod server;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redis::Value;

use self::{
    address::{Address, Wanted},
    bytes::Bytes,
    doorbell::{BLOCK, Doorbell},
    link::Link,
    offset::Offset,
    reply::Reply,
    script::Script,
    scripts::{COMMON_KEYS, SCRIPTS},
    settings::Known,
    thread::Thread,
};
use super::{
    Acted, Action, Audit, Audited, Batch, BoxFuture, Call, Check, Counts, Durability, Enqueued, Histogram,
    Lease, LeaseStatus, List, Page, QueueOp, QueueReply, Reserve, Settled, Settlement, Store, Swept, Take,
    Target, UniqueKey, Upcoming, check_limit, clock::Clock,
};
use crate::{
    error::Result,
    id::JobId,
    job::{JobRecord, NewJob},
    time::Timestamp,
};

/// The one shard that there is.
const SHARD: u16 = 0;

/// A store on servers of Redis or Valkey.
pub struct RedisStore {
    address: Address,
    durability: Durability,
    shown: String,
    clock: Clock,
    link: Link,
    bell: Doorbell,
    known: Mutex<Known>,
    /// How far the server's clock is ahead of this machine's.
    offset: Offset,
    /// The keys that every script names.
    keys: Vec<Vec<u8>>,
}

impl RedisStore {
    /// Opens the store at `url`: `redis://[user:password@]host[:port][/db][?prefix=pq]`, or
    /// `redis+sentinel://[user:password@]host[:26379][,host…]/service[/db]`, or `redis+cluster://[user:password@]host[,host…]`.
    /// With `rediss` for `redis` all connections are encrypted, and `ca=/path` may name whom to trust.
    ///
    /// A server that may delete jobs when its memory is full is refused unless the address says `eviction=allowed`.
    ///
    /// `clock` is the server's for `Clock::System`; one that is turned by hand is handed to each script.
    ///
    /// # Errors
    /// `Invalid` for an address that can't be read, `Unavailable` if nobody answers there, `Unsupported` for a server that
    /// can't keep a store's promises, `Corrupt` where a key of ours is somebody else's.
    pub async fn open(url: &str, clock: Clock) -> Result<Self> {
        let address = Address::parse(url)?;
        let thread = Arc::new(Thread::start()?);
        let link = Link::open(&thread, &address, SHARD).await?;
        check::check(&address, &link).await?;
        let durability = match address.durability() {
            Wanted::Fast => Durability::Fast,
            Wanted::Full => Durability::Full,
            Wanted::Replicated(_) => Durability::Replicated,
        };
        let bell = Doorbell::open(&link, BLOCK);
        let keys = COMMON_KEYS.iter().map(|key| address.key(key)).collect();
        let shown = address.to_string();
        Ok(Self {
            address,
            durability,
            shown,
            clock,
            link,
            bell,
            known: Mutex::default(),
            offset: Offset::default(),
            keys,
        })
    }

    /// The time to hand to a script: nothing, for the server's own.
    fn now_arg(&self) -> Vec<u8> {
        match &self.clock {
            Clock::System => Vec::new(),
            Clock::Manual(clock) => clock.now().as_ms().to_string().into_bytes(),
        }
    }

    /// Calls a script with the common keys, `bells`, the time and `args`.
    async fn call(&self, script: &'static Script, bells: &[Vec<u8>], args: Vec<Vec<u8>>) -> Result<Value> {
        let mut keys = self.keys.clone();
        keys.extend_from_slice(bells);
        let mut all = Vec::with_capacity(args.len() + 1);
        all.push(self.now_arg());
        all.extend(args);
        self.link.call(script, &keys, &all).await
    }

    async fn ask(&self, script: &'static Script, bells: &[Vec<u8>], args: Vec<Vec<u8>>) -> Result<Reply> {
        Reply::of(self.call(script, bells, args).await?)
    }

    /// Rings the bells that a script left to its caller: name and time of each.
    fn ring(&self, rings: &[u8]) -> Result<()> {
        let (mut rings, mut named) = (Bytes(rings), Vec::new());
        while !rings.is_empty() {
            named.push((rings.chunk()?.text()?, rings.time()?));
        }
        self.bell.ring(&named, self.server_now());
        Ok(())
    }

    /// What the server's clock shows, as far as the last answer tells.
    fn server_now(&self) -> Timestamp {
        let now = self.clock.now();
        match &self.clock {
            Clock::System => self.offset.apply(now),
            Clock::Manual(_) => now,
        }
    }

    /// Learns how far the server's clock is ahead of this machine's.
    fn learn_clock(&self, asked: Timestamp, server: Timestamp) {
        if matches!(self.clock, Clock::System) {
            self.offset.learn(asked, server, self.clock.now());
        }
    }

    /// Sweeps; `ageless`: gives up done and cancelled jobs whatever their age.
    async fn sweep_jobs(&self, limit: usize, ageless: bool) -> Result<Swept> {
        let args = vec![digits(limit as u64), digits(u64::from(ageless))];
        let mut reply = self.ask(&SCRIPTS.sweep, &[], args).await?;
        Ok(Swept {
            expired: reply.number()?,
            removed: reply.number()?,
            forgotten: reply.number()?,
            more: reply.number()? != 0,
        })
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Comes back when a clock for tests is turned; never for the system's.
async fn turned(clock: &Clock) {
    match clock {
        // The clock lives as long as the store.
        Clock::Manual(clock) => drop(clock.turns().changed().await),
        Clock::System => std::future::pending().await,
    }
}

/// A number as scripts read it.
fn digits(n: impl Into<u64>) -> Vec<u8> {
    n.into().to_string().into_bytes()
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("url", &self.shown).finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    fn url(&self) -> &str {
        &self.shown
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp>> {
        Box::pin(read::now(self))
    }

    fn enqueue<'a>(&'a self, call: Call, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>> {
        Box::pin(enqueue::enqueue(self, call, jobs))
    }

    fn reserve<'a>(&'a self, want: &'a Reserve) -> BoxFuture<'a, Result<Batch>> {
        Box::pin(reserve::reserve(self, want))
    }

    fn extend<'a>(&'a self, leases: &'a [Lease]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>> {
        Box::pin(settle::extend(self, leases))
    }

    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>> {
        Box::pin(settle::settle(self, batch, then))
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>> {
        Box::pin(reserve::take(self, take))
    }

    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let now = || self.server_now();
            tokio::select! {
                _ = self.bell.wait(queues, at_most, &now) => {}
                () = turned(&self.clock) => {}
            }
            Ok(())
        })
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>> {
        Box::pin(read::get(self, Some(id), None))
    }

    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>> {
        Box::pin(read::get(self, None, Some(key)))
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>> {
        Box::pin(read::list(self, list))
    }

    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>> {
        Box::pin(read::count(self, queue))
    }

    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>> {
        Box::pin(read::upcoming(self, upcoming))
    }

    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>> {
        Box::pin(act::act(self, targets, action))
    }

    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>> {
        Box::pin(queue::queue(self, name, op))
    }

    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>> {
        Box::pin(queue::queues(self, after))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>> {
        Box::pin(async move {
            check_limit("sweep", limit)?;
            self.sweep_jobs(limit, false).await
        })
    }

    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>> {
        Box::pin(audit::audit(self, audit))
    }

    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>> {
        Box::pin(doctor::examine(self))
    }
}
