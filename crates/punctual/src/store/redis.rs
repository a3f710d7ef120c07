//! The store for many machines: Redis or Valkey, as one server, with sentinels, or as a cluster.
//!
//! Each verb is one script (`lua/*.lua`), which the server runs as one step. All its keys are named and in one slot.
//! What the scripts share, for example keys and layouts, is described in `lua/key_names.lua`. This module calls them: it
//! checks limits, encodes arguments as flat binary, and decodes answers. `count`, `sweep`, `act` and purges stop
//! after some queues or a mebibyte of records, and are called again for the rest (S13).
//!
//! A store has one shard or more (`layout`), each with its own keys, connections and notifications (`shard`). The
//! part of a verb in one shard is in the file of its name here; the part over all shards is in `sharded`.
//!
//! Connections live on one thread per store: per shard one for the verbs (`link`) and one that waits for work
//! (`notify`). Both find their server through the shard's `route`.

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
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::watch;

pub(crate) use self::connection::address;
pub use self::sharded::reshard::{ShardInfo, Shards};
use self::{
    connection::{
        address::{Address, Wanted},
        fault,
        io_thread::Thread,
    },
    sharded::{
        attempts::{Attempts, Tried},
        copies,
        givers::Givers,
        layout::Layout,
        lease::Try,
        shard::Shard,
    },
    verbs::doc,
};
use super::{BoxFuture, Call, CallId, Durability, Reply, Reserve, Store, clock::Clock, reply};
use crate::core::error::Result;

/// A store on a Redis or Valkey server, sentinel group or cluster.
pub struct RedisStore {
    address: Address,
    durability: Durability,
    shown: String,
    clock: Clock,
    thread: Arc<Thread>,
    /// The layout as known here. Waits end when it changes.
    live: watch::Sender<Arc<Live>>,
    /// Held by the caller that learns of another layout.
    learning: tokio::sync::Mutex<()>,
    enqueues: Mutex<Attempts<Tried>>,
    reserves: Mutex<Attempts<Try>>,
    givers: Mutex<Givers>,
    /// Decides which shard is asked first.
    turn: AtomicUsize,
    /// Decides which shard gets the next job.
    job_turn: AtomicUsize,
    /// The shard that has more work, as far as known.
    expected: AtomicUsize,
    /// Shards that notified and have not been asked first since.
    woken: Mutex<BTreeSet<usize>>,
}

/// The shards of a layout that can hold jobs.
#[derive(Debug)]
pub(crate) struct Live {
    layout: Layout,
    shards: Vec<Arc<Shard>>,
}

impl RedisStore {
    /// Opens the store at `url`.
    ///
    /// The address is `redis://[user:password@]host[:port][/db][?prefix=pq]`, or
    /// `redis+sentinel://[user:password@]host[:26379][,host…]/service[/db]`, or
    /// `redis+cluster://[user:password@]host[,host…]`. With `rediss` in place of `redis`, all connections are
    /// encrypted, and `ca=/path` can name the trusted certificates.
    ///
    /// A server that can evict jobs when its memory is full is refused unless the address has `eviction=allowed`.
    ///
    /// If the server of shard 0 of a cluster is unavailable, the store is opened with the layout that the other
    /// shards know.
    ///
    /// With `Clock::System`, the clock is the server's. A clock that a test sets is passed to each script.
    ///
    /// # Errors
    /// `Invalid` for an address that cannot be parsed. `Unavailable` if no server replies. `Unsupported` for a server
    /// that cannot keep the store's promises, or a store of an earlier format. `Outdated` for a store of a later
    /// format. `Corrupt` if a key of the store has foreign content, or if its state is lost: see [`restore`](Self::restore).
    pub async fn open(url: &str, clock: Clock) -> Result<Self> {
        Self::open_at(Address::parse(url)?, clock).await
    }

    /// Opens the store at `url` with scripts without a fast path, so that a test can compare what they answer and leave.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn open_without_fast(url: &str, clock: Clock) -> Result<Self> {
        let mut address = Address::parse(url)?;
        address.is_without_fast = true;
        Self::open_at(address, clock).await
    }

    /// Makes scripts assume that this process wakes only for these times, until it is called with `None`.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn say_that_it_holds(&self, times: Option<&[crate::core::time::Timestamp]>) {
        for shard in &self.live().shards {
            *lock(&shard.held) = times.map(<[_]>::to_vec);
        }
    }

    async fn open_at(address: Address, clock: Clock) -> Result<Self> {
        let thread = Arc::new(Thread::start()?);
        let first = Arc::new(Shard::new(&thread, &address, &clock, 0)?);
        let entered = first.link.enter().await;
        let copied = match &entered {
            // In a cluster, the servers of other shards may be available.
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
            live: watch::Sender::new(Arc::new(live)),
            learning: tokio::sync::Mutex::default(),
            enqueues: Mutex::default(),
            reserves: Mutex::default(),
            givers: Mutex::default(),
            turn: AtomicUsize::default(),
            job_turn: AtomicUsize::default(),
            expected: AtomicUsize::new(usize::MAX),
            woken: Mutex::default(),
        };
        if !goes_by_a_copy {
            let told = store.check_format().await?;
            store.refresh().await?;
            store.check_layout(told)?;
        }
        Ok(store)
    }

    /// Returns the layout as known here.
    fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.borrow())
    }

    /// Returns the next number for round robin over the shards.
    fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns what is known of an enqueue. A repetition is first tried as before.
    fn tried_to_enqueue(&self, call: CallId) -> Tried {
        let live = self.live();
        let mut enqueues = lock(&self.enqueues);
        let tried = enqueues.of(call, Tried::default);
        if tried.lives.last().is_none_or(|last| last.layout.epoch != live.layout.epoch) {
            tried.lives.push(live);
        }
        tried.clone()
    }

    /// Remembers an enqueue for its repetition.
    fn note_tried(&self, call: CallId, tried: &Tried) {
        lock(&self.enqueues).of(call, Tried::default).clone_from(tried);
    }

    /// Chooses the shards that a reserve asks. A repetition is tried as before.
    ///
    /// First is a shard that notified; else each shard in turn that is not known to be empty, and in between the one
    /// with more work. If all are empty, it is the shard at `hint`, which the caller contacts anyway.
    fn attempt_to_reserve(&self, request: &Reserve, hint: Option<usize>) -> Try {
        let new = || {
            let (live, turn) = (self.live(), self.next_turn());
            let (shards, expected) = (live.shards.len(), self.expected.load(Ordering::Relaxed));
            let woken = lock(&self.woken).pop_first();
            let in_turn = turn / 2 % shards;
            let is_worth_asking = |at: &usize| {
                let shard = &live.shards[*at];
                shard.quiet_for(request, hint.is_some()).is_none() || shard.quiet.is_unheard()
            };
            let first = match woken.filter(|woken| *woken < shards) {
                Some(woken) => woken,
                None if turn % 2 == 0 && expected < shards => expected,
                None => (in_turn..shards)
                    .chain(0..in_turn)
                    .find(is_worth_asking)
                    .or(hint.filter(|hint| *hint < shards))
                    .unwrap_or(in_turn),
            };
            Try { live, first, asked: Arc::default(), follows_a_settle: hint.is_some() }
        };
        let mut attempt = lock(&self.reserves).of(request.call, new).clone();
        if let Some(open) = lock(&attempt.asked).first_open() {
            attempt.first = open;
        }
        attempt
    }

    /// Returns whether a shard has notified and was not asked since.
    fn has_rung(&self, shard: usize) -> bool {
        lock(&self.woken).contains(&shard)
    }

    /// Notes the shard that has more work, or that none is known.
    fn expect_work(&self, shard: Option<usize>) {
        self.expected.store(shard.unwrap_or(usize::MAX), Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns when a test sets its clock; never for the system's clock.
async fn clock_changed(clock: &Clock) {
    match clock {
        // The clock lives as long as the store.
        Clock::Manual(clock) => drop(clock.changes().changed().await),
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

    /// The next shard in turn that is available as far as known, so that a caller that makes an id waits for no
    /// unavailable one.
    fn shard(&self) -> u16 {
        let (live, turn) = (self.live(), self.job_turn.fetch_add(1, Ordering::Relaxed));
        let shards = usize::from(live.layout.shards);
        let mut in_turn = (0..shards).map(|i| (turn.wrapping_add(i)) % shards);
        in_turn.find(|at| !sharded::lease::is_away(&live.shards, *at)).unwrap_or(turn % shards) as u16
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>> {
        match call {
            Call::Identity => reply(identity::of_store(self)),
            Call::Now => reply(sharded::read::now(self)),
            Call::Enqueue { call, jobs, partial } => {
                reply(sharded::enqueue::enqueue(self, call, jobs, partial))
            }
            Call::Reserve(request) => reply(sharded::lease::reserve(self, request)),
            Call::Extend(beats) => reply(sharded::lease::extend(self, beats)),
            Call::Settle { batch, then } => reply(sharded::lease::settle(self, batch, then)),
            Call::Take(take) => reply(sharded::lease::take(self, take)),
            Call::Wait { queues, at_most } => reply(sharded::watch::wait(self, queues, at_most)),
            Call::Get(id) => reply(sharded::read::get(self, id)),
            Call::Holder(key) => reply(sharded::read::holder(self, key)),
            Call::List(list) => reply(sharded::read::list(self, list)),
            Call::Count(queue) => reply(sharded::read::count(self, queue)),
            Call::Upcoming(upcoming) => reply(sharded::read::upcoming(self, upcoming)),
            Call::Act { targets, action } => reply(sharded::act::act(self, targets, action)),
            Call::Queue { name, op } => reply(sharded::queue::queue(self, name, op)),
            Call::Queues(after) => reply(sharded::queue::queues(self, after)),
            // Shard 0 has the documents and the tools, whatever the layout.
            Call::Doc(op) => reply(async move { doc::doc(&self.live().shards[0], op).await }),
            Call::Tool(op) => reply(async move { toolkit::tool(&self.live().shards[0], op).await }),
            Call::Sweep(limit) => reply(sharded::upkeep::sweep(self, limit)),
            Call::Audit(audit) => reply(sharded::upkeep::audit(self, audit)),
            Call::Doctor => {
                reply(async move { doctor::examine(&self.live().shards, &self.shown, self.durability).await })
            }
        }
    }
}
