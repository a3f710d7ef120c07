//! The store for many machines: Redis or Valkey, one server, or several behind sentinels, or a cluster.
//!
//! Each verb is one script (`lua/*.lua`), which the server runs as one step; all its keys are named and in one slot. What
//! the scripts share, the keys and the layouts among it, stands in `lua/keys.lua`. Here they are called: arguments are
//! flat binary, limits are checked before, answers are read. `count`, `sweep`, `act` and purges stop behind some queues or a
//! mebibyte of records, and are called again for the rest (S13).
//!
//! A store is spread over one shard or more (`layout`), each with keys, connections and a doorbell of its own (`shard`). What
//! a verb does in one shard stands in the file of its name here; what it does over all of them, in `spread`.
//!
//! What talks to the servers lives on one thread per store: a connection per shard that carries the verbs (`link`) and one
//! that waits for work (`doorbell`). Both find their way by the shard's `route`.

mod audit;
mod connection;
mod doctor;
mod identity;
mod notify;
#[cfg(feature = "testing")]
mod scratch;
mod scripts;
mod sharded;
mod state;
mod toolkit;
mod verbs;

#[cfg(test)]
#[path = "../../tests/support/redis.rs"]
mod server;

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::select_all;
use tokio::sync::watch;

pub use self::sharded::reshard::{ShardInfo, Shards};
use self::{
    connection::{
        address::{Address, Wanted},
        fault,
        io_thread::Thread,
    },
    notify::Rung,
    sharded::{
        attempts::{Attempts, Tried},
        copies,
        layout::Layout,
        lease::Try,
        shard::Shard,
    },
    verbs::doc,
};
use super::{
    Acted, Action, Audit, Audited, Batch, BoxFuture, Call, Check, Counts, DocOp, DocReply, Durability,
    Enqueued, Heartbeat, Histogram, Identity, LeaseStatus, List, Page, QueueOp, QueueReply, Reserve, Settled,
    Settlement, Store, Swept, Take, Target, ToolOp, ToolReply, UniqueKey, Upcoming, clock::Clock,
    is_of_queue,
};
use crate::core::{
    error::Result,
    id::JobId,
    job::{JobRecord, NewJob},
    time::Timestamp,
};

/// A store on servers of Redis or Valkey.
pub struct RedisStore {
    address: Address,
    durability: Durability,
    shown: String,
    clock: Clock,
    thread: Arc<Thread>,
    identity: OnceLock<Identity>,
    /// How the store is spread, as far as it is known here; waits end when it is another way.
    live: watch::Sender<Arc<Live>>,
    /// Held by whoever learns of another layout.
    learning: tokio::sync::Mutex<()>,
    enqueues: Mutex<Attempts<Tried>>,
    reserves: Mutex<Attempts<Try>>,
    /// Whose turn it is to be asked first.
    turn: AtomicUsize,
    /// Whose turn it is to get a job.
    job_turn: AtomicUsize,
    /// The shard where there is more work, as far as is known.
    expected: AtomicUsize,
    /// Shards whose bells rang, and that were not asked first since then.
    rung: Mutex<BTreeSet<usize>>,
}

/// The shards that may hold jobs, by a layout.
#[derive(Debug)]
pub(crate) struct Live {
    layout: Layout,
    shards: Vec<Arc<Shard>>,
}

impl RedisStore {
    /// Opens the store at `url`: `redis://[user:password@]host[:port][/db][?prefix=pq]`, or
    /// `redis+sentinel://[user:password@]host[:26379][,host…]/service[/db]`, or `redis+cluster://[user:password@]host[,host…]`.
    /// With `rediss` for `redis` all connections are encrypted, and `ca=/path` may name whom to trust.
    ///
    /// A server that may delete jobs when its memory is full is refused unless the address says `eviction=allowed`.
    ///
    /// Where the server of shard 0 of a cluster is away, the store is opened by what the other shards know of its layout.
    ///
    /// `clock` is the server's for `Clock::System`; one that is turned by hand is handed to each script.
    ///
    /// # Errors
    /// `Invalid` for an address that can't be read, `Unavailable` if nobody answers there, `Unsupported` for a server that
    /// can't keep a store's promises, or a store of an earlier format, `Outdated` for one of a later format, `Corrupt` where a key of
    /// ours is somebody else's.
    pub async fn open(url: &str, clock: Clock) -> Result<Self> {
        let address = Address::parse(url)?;
        let thread = Arc::new(Thread::start()?);
        let first = Arc::new(Shard::new(&thread, &address, &clock, 0)?);
        let entered = first.link.enter().await;
        let copied = match &entered {
            // Of a cluster the servers of other shards may be there.
            Err(error) if fault::is_away(error) && address.is_cluster() => {
                copies::find(&thread, &address, &clock, &first).await?
            }
            _ => None,
        };
        let goes_by_a_copy = copied.is_some();
        let live = match copied {
            Some(live) => live,
            None => entered.map(|()| Live { layout: Layout::default(), shards: vec![first] })?,
        };
        let durability = match address.durability() {
            Wanted::Fast => Durability::Fast,
            Wanted::Full => Durability::Full,
            Wanted::Replicated(_) => Durability::Replicated,
        };
        let store = Self {
            durability,
            shown: address.to_string(),
            address,
            clock,
            thread,
            identity: OnceLock::new(),
            live: watch::Sender::new(Arc::new(live)),
            learning: tokio::sync::Mutex::default(),
            enqueues: Mutex::default(),
            reserves: Mutex::default(),
            turn: AtomicUsize::default(),
            job_turn: AtomicUsize::default(),
            expected: AtomicUsize::new(usize::MAX),
            rung: Mutex::default(),
        };
        if !goes_by_a_copy {
            store.check_format().await?;
            store.refresh().await?;
        }
        Ok(store)
    }

    /// How the store is spread, as far as it is known here.
    fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.borrow())
    }

    /// The next number, by which shards are asked first in turn.
    fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// What is known of an enqueue; a repetition is tried first as it was before.
    fn tried_to_enqueue(&self, call: Call) -> Tried {
        let live = self.live();
        let mut enqueues = lock(&self.enqueues);
        let tried = enqueues.of(call, Tried::default);
        if tried.lives.last().is_none_or(|last| last.layout.epoch != live.layout.epoch) {
            tried.lives.push(live);
        }
        tried.clone()
    }

    /// Remembers an enqueue for its repetition.
    fn note_tried(&self, call: Call, tried: &Tried) {
        lock(&self.enqueues).of(call, Tried::default).clone_from(tried);
    }

    /// How to try a reserve: a repetition as it was tried before. First is a shard that rang; else each in its turn that is not
    /// known to have nothing, and between turns the one where there is more.
    /// Where all are quiet, the one at `hint`, with which there is something else to do.
    fn attempt_to_reserve(&self, want: &Reserve, hint: Option<usize>) -> Try {
        let new = || {
            let (live, turn) = (self.live(), self.next_turn());
            let (shards, expected) = (live.shards.len(), self.expected.load(Ordering::Relaxed));
            let rung = lock(&self.rung).pop_first();
            let in_turn = turn / 2 % shards;
            let is_worth_asking = |at: &usize| {
                let shard = &live.shards[*at];
                shard.quiet_for(want, hint.is_some()).is_none() || shard.quiet.is_unheard()
            };
            let first = match rung.filter(|rung| *rung < shards) {
                Some(rung) => rung,
                None if turn % 2 == 0 && expected < shards => expected,
                None => (in_turn..shards)
                    .chain(0..in_turn)
                    .find(is_worth_asking)
                    .or(hint.filter(|hint| *hint < shards))
                    .unwrap_or(in_turn),
            };
            Try { live, first, asked: Arc::default(), follows_a_settle: hint.is_some() }
        };
        let mut attempt = lock(&self.reserves).of(want.call, new).clone();
        if let Some(last) = lock(&attempt.asked).last {
            attempt.first = last;
        }
        attempt
    }

    /// Whether a shard rang, and was not asked since.
    fn has_rung(&self, shard: usize) -> bool {
        lock(&self.rung).contains(&shard)
    }

    /// There is more work in this shard, or in none that is known.
    fn expect_work(&self, shard: Option<usize>) {
        self.expected.store(shard.unwrap_or(usize::MAX), Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Comes back when a clock for tests is turned; never for the system's.
async fn turned(clock: &Clock) {
    match clock {
        // The clock lives as long as the store.
        Clock::Manual(clock) => drop(clock.turns().changed().await),
        Clock::System => std::future::pending().await,
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("url", &self.shown).finish_non_exhaustive()
    }
}

impl super::sealed::Sealed for RedisStore {}

impl Store for RedisStore {
    fn url(&self) -> &str {
        &self.shown
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    /// The next one in turn, of those that can be reached as far as is known: who makes an id waits for none that is away.
    fn shard(&self) -> u16 {
        let (live, turn) = (self.live(), self.job_turn.fetch_add(1, Ordering::Relaxed));
        let shards = usize::from(live.layout.shards);
        let mut in_turn = (0..shards).map(|i| (turn.wrapping_add(i)) % shards);
        in_turn.find(|at| !sharded::lease::is_away(&live.shards, *at)).unwrap_or(turn % shards) as u16
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity>> {
        Box::pin(async {
            if let Some(identity) = self.identity.get() {
                return Ok(*identity);
            }
            let shards = &self.live().shards;
            let asked = if sharded::lease::is_away(shards, 0) {
                Err(fault::away())
            } else {
                identity::identity(&shards[0]).await
            };
            let identity = match asked {
                // It was made before the others were given their copies.
                Err(error) if 1 < shards.len() && fault::is_away(&error) => {
                    copies::identity(shards).await.ok_or(error)?
                }
                asked => asked?,
            };
            Ok(*self.identity.get_or_init(|| identity))
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp>> {
        Box::pin(sharded::read::now(self))
    }

    fn enqueue<'a>(&'a self, call: Call, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>> {
        Box::pin(sharded::enqueue::enqueue(self, call, jobs))
    }

    fn enqueue_each<'a>(
        &'a self,
        call: Call,
        jobs: &'a [NewJob],
    ) -> BoxFuture<'a, Result<Vec<Option<Enqueued>>>> {
        Box::pin(async move {
            let (answers, away) = sharded::enqueue::enqueue_each(self, call, jobs).await?;
            // Where no part is there, the store is away.
            let live = self.live();
            let is_away = (0..live.shards.len()).all(|at| sharded::lease::is_away(&live.shards, at));
            match away.filter(|_| is_away && answers.iter().all(Option::is_none)) {
                Some(error) => Err(error),
                None => Ok(answers),
            }
        })
    }

    fn reserve<'a>(&'a self, want: &'a Reserve) -> BoxFuture<'a, Result<Batch>> {
        Box::pin(sharded::lease::reserve(self, want))
    }

    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>> {
        Box::pin(sharded::lease::extend(self, beats))
    }

    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>> {
        Box::pin(sharded::lease::settle(self, batch, then))
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>> {
        Box::pin(sharded::lease::take(self, take))
    }

    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.catch_up().await;
            if sharded::watch::any_ended(self, queues).await? {
                return Ok(());
            }
            let mut changes = self.live.subscribe();
            let live = Arc::clone(&changes.borrow_and_update());
            let bells: Vec<Vec<String>> =
                (0..live.shards.len()).map(|at| sharded::watch::bells_in(&live, at, queues)).collect();
            let listening = live
                .shards
                .iter()
                .zip(&bells)
                .enumerate()
                .filter(|(_, (_, bells))| queues.is_empty() || !bells.is_empty());
            let waits = listening.map(|(at, (shard, bells))| {
                let wait = shard.wait(bells, at_most);
                Box::pin(async move { (at, wait.await) })
            });
            // The first that has rung ends the wait: each shard has its turn to be it.
            let mut waits: Vec<_> = waits.collect();
            let turn = fastrand::usize(..waits.len().max(1));
            waits.rotate_left(turn);
            tokio::select! {
                ((at, rung), ..) = select_all(waits) => if rung == Rung::Work {
                    if queues.iter().any(|bell| is_of_queue(bell)) {
                        lock(&self.rung).insert(at);
                    }
                    // One that was left from an earlier end goes no further.
                    if sharded::watch::any_ended(self, queues).await? {
                        sharded::watch::pass_on(&live.shards[at], queues);
                    }
                },
                _ = changes.changed() => {}
                () = turned(&self.clock) => {}
            }
            Ok(())
        })
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>> {
        Box::pin(sharded::read::get(self, id))
    }

    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>> {
        Box::pin(sharded::read::holder(self, key))
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>> {
        Box::pin(sharded::read::list(self, list))
    }

    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>> {
        Box::pin(sharded::read::count(self, queue))
    }

    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>> {
        Box::pin(sharded::read::upcoming(self, upcoming))
    }

    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>> {
        Box::pin(sharded::act::act(self, targets, action))
    }

    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>> {
        Box::pin(sharded::queue::queue(self, name, op))
    }

    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>> {
        Box::pin(sharded::queue::queues(self, after))
    }

    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>> {
        // Whatever the layout, shard 0 has the documents.
        Box::pin(async move { doc::doc(&self.live().shards[0], op).await })
    }

    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>> {
        // As with documents: whatever the layout, shard 0 has the tools.
        Box::pin(async move { toolkit::tool(&self.live().shards[0], op).await })
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>> {
        Box::pin(sharded::upkeep::sweep(self, limit))
    }

    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>> {
        Box::pin(sharded::upkeep::audit(self, audit))
    }

    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>> {
        Box::pin(async move { doctor::examine(&self.live().shards, &self.shown, self.durability).await })
    }
}
