//! Changing the number of shards of a store that is in use.
//!
//! One write decides it: the layout in shard 0, replaced where it is still the one that was seen. Then each shard is told the
//! new epoch, and takes no jobs of the one before; its callers hear of it by their next answer. Jobs stay where they are,
//! and a shard that takes no more is asked for jobs until it holds nothing.
//!
//! ```text
//! settings to the new shards ──► layout in shard 0 ──► epoch in every shard ──► settings, each shard its share ──► bell
//!                                       │                                                                           │
//!           who opens the store or hears of the epoch goes on from here       idle workers hear it, all of them at shard 0,
//!           (`adopt`), until the layout says that all shards know of it       and each tells the next one
//! ```
//!
//! A queue that is pinned, or spread again, is a change of the layout with the same number of shards.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        id::JobId,
    },
    store::{
        Placement, QueueOp, QueueReply, Store,
        redis::{
            Live, RedisStore,
            connection::fault,
            scripts::{
                SCRIPTS, STATE,
                reply::{self, Reply},
            },
            sharded::{
                self, copies,
                layout::Layout,
                shard::{Shard, digits},
            },
            verbs::read,
        },
    },
};

/// How often somebody else may change the layout meanwhile.
const TRIES_MAX: usize = 16;

/// How long a change of the number of shards is gone on with while a server is away: others may take over by then.
const RESHARD_MAX: Duration = Duration::from_secs(30);
/// Before it is gone on with.
const RESHARD_PAUSE: Duration = Duration::from_millis(250);

/// How a store is spread over its shards.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Shards {
    /// How many take jobs: 0 to this less 1.
    pub count: u16,
    /// All of them, and behind them those that take none any more but may hold some.
    pub shards: Vec<ShardInfo>,
}

/// One shard of a store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ShardInfo {
    /// Its number, which is in the ids of its jobs.
    pub number: u16,
    /// Whether it takes jobs.
    #[serde(rename = "open")]
    pub is_open: bool,
    /// Jobs in any state.
    pub jobs: u64,
    /// Ids that are remembered, and unique keys that are held.
    pub kept: u64,
}

/// What a shard says of itself.
pub(crate) struct Told {
    /// The epoch that it was in before.
    epoch: u32,
    jobs: u64,
    kept: u64,
    /// Groups whose gate or place it knows.
    groups: u64,
    /// Whether the search for misplaced jobs is over in the epoch of the shard.
    is_searched: bool,
}

impl Told {
    /// Whether nothing is there that only an outgrown number leads to.
    const fn is_settled(&self) -> bool {
        self.is_searched || self.jobs + self.kept + self.groups == 0
    }
}

/// Tells a shard the epoch; 0 tells it nothing.
pub(crate) async fn tell(shard: &Shard, epoch: u32) -> Result<Told> {
    tell_with(shard, epoch, Vec::new()).await
}

/// The same, with a copy of the layout of that epoch and of its pins, once all shards know of it.
pub(crate) async fn tell_with(shard: &Shard, epoch: u32, copy: Vec<Vec<u8>>) -> Result<Told> {
    let args = [vec![digits(epoch)], copy].concat();
    let mut reply = shard.ask(&SCRIPTS.epoch, &[], args).await?;
    let told = Told {
        epoch: reply.number()? as u32,
        jobs: reply.number()?,
        kept: reply.number()?,
        groups: reply.number()?,
        is_searched: reply.number()? == 1,
    };
    shard.learn_epoch(told.epoch.max(epoch));
    Ok(told)
}

/// The layout with its pins, as they stand in shard 0, or a copy in another one.
pub(crate) async fn read_layout(shard: &Shard) -> Result<Layout> {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&shard.keys[STATE]).arg("layout").arg("pins");
    let mut reply = Reply::of(shard.link.command(cmd).await?)?;
    let (row, pins) = (reply.bytes_or_none()?, reply.bytes_or_none()?);
    Layout::decode(&row, &pins)
}

impl RedisStore {
    /// How the store is spread over its shards; forgets those that take no jobs any more and hold nothing, and numbers of shards
    /// that nothing is left of.
    ///
    /// # Errors
    /// Where a shard can't be reached.
    pub async fn shards(&self) -> Result<Shards> {
        let live = self.refresh().await?;
        let told = sharded::all(live.shards.iter().map(|shard| tell(shard, 0))).await?;
        let seen = told.iter().map(|told| told.epoch).max().unwrap_or_default();
        let holding = told.iter().rposition(|told| 0 < told.jobs + told.kept).map_or(0, |last| last + 1);
        let mut without = live.layout.without(holding as u16, seen);
        // A job goes where an outgrown number leads only beside others of its key: where none are, none come. A shard that does not
        // know of the layout yet may still accept jobs by an earlier one. The answers are confirmed as writes are (`confirm`):
        // a server that takes over knows of the end of a search, too, and of all that it rests on.
        let outgrown = usize::from(live.layout.outgrown());
        if told.iter().all(|told| told.epoch == live.layout.epoch)
            && told[..outgrown].iter().all(Told::is_settled)
        {
            without = without.without_outgrown();
        }
        let live =
            if without.earlier == live.layout.earlier { live } else { self.decide(&live, &without).await? };
        let info = |(shard, told): (&Arc<Shard>, Told)| ShardInfo {
            number: shard.number,
            is_open: shard.number < live.layout.shards,
            jobs: told.jobs,
            kept: told.kept,
        };
        Ok(Shards { count: live.layout.shards, shards: live.shards.iter().zip(told).map(info).collect() })
    }

    /// Spreads the store over another number of shards, 1 to 1,024, while it is in use. Jobs stay where they are and keep
    /// their ids; unique keys and idempotency keys keep their promise. Repeated after a failure it goes on where that one
    /// stopped. Where a server is away, it goes on for 30 s: another one may take over.
    ///
    /// Dropped before its end, it may have changed the layout already: any process that opens the store, or asks how it is
    /// spread, finishes what is left.
    ///
    /// # Errors
    /// `Invalid` for a number that no store can have; `Conflict` where a queue's bounds are too few to be shared, or after
    /// too many changes; else where a shard can't be reached.
    pub async fn reshard(&self, shards: u16) -> Result<Shards> {
        let begin = Instant::now();
        loop {
            match self.reshard_once(shards).await {
                // Servers may be changing places. What was done in part is gone on with.
                Err(error) if error.is_repeatable() && begin.elapsed() < RESHARD_MAX => {
                    tracing::debug!(target: "punctual", error = &error as &dyn std::error::Error, "goes on with the change of shards");
                    tokio::time::sleep(RESHARD_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    async fn reshard_once(&self, shards: u16) -> Result<Shards> {
        for _ in 0..TRIES_MAX {
            let live = self.refresh().await?;
            let told = sharded::all(live.shards.iter().map(|shard| tell(shard, 0))).await?;
            let seen = told.iter().map(|told| told.epoch).max().unwrap_or_default();
            let is_done = live.layout.shards == shards && seen <= live.layout.epoch;
            if is_done {
                return self.shards().await;
            }
            let changed = live.layout.changed(shards, seen, read::now(&live.shards[0]).await?)?;
            self.check_queues(shards).await?;
            // A queue that is paused must be so in the new shards from the first job on.
            let wider = self.opened(&live, changed.clone()).await?;
            sharded::queue::copy_all(&wider, live.shards.len(), live.layout.epoch).await?;
            self.decide(&live, &changed).await?;
        }
        Err(Error::new(ErrorKind::Conflict, "another process keeps changing the number of shards"))
    }

    /// Refuses a number of shards that is too large for the bounds of a queue.
    async fn check_queues(&self, shards: u16) -> Result<()> {
        let (live, mut after) = (self.live(), None);
        while let Some(names) = sharded::queue::next_names(&live, &mut after).await? {
            for name in &names {
                if let QueueReply::Info(info) = self.queue(name, &QueueOp::Show).await? {
                    sharded::queue::check_caps(name, &info.settings, shards)?;
                }
            }
        }
        Ok(())
    }

    /// Places the jobs of a queue in another way from now on, if the layout still is the one of `live`; answers the one that
    /// is in force.
    pub(crate) async fn place_queue(&self, live: &Live, queue: &str, to: Placement) -> Result<Arc<Live>> {
        let told = sharded::all(live.shards.iter().map(|shard| tell(shard, 0))).await?;
        let seen = told.iter().map(|told| told.epoch).max().unwrap_or_default();
        if live.layout.epoch < seen {
            // Also where shard 0 has lost a layout: to go on from an older one is the operator's to decide.
            return self.refresh().await;
        }
        let now = read::now(&live.shards[0]).await?;
        self.decide(live, &live.layout.placing(queue, to, seen, now)?).await
    }

    /// Replaces the layout by `new` if it still is the one of `live`; answers the one that is in force.
    async fn decide(&self, live: &Live, new: &Layout) -> Result<Arc<Live>> {
        let mut args = vec![live.layout.encode(), new.encode()];
        if new.pins != live.layout.pins {
            args.push(new.pins.encode());
        }
        let set = live.shards[0].call(&SCRIPTS.layout, &[], args).await?;
        reply::int(&set)?;
        self.refresh().await
    }

    /// The shards of another layout, those that are new looked at. One that can't be reached is looked at later: the others
    /// do not wait for it.
    async fn opened(&self, live: &Live, layout: Layout) -> Result<Live> {
        let new = live.shards.len() as u16..layout.live();
        let new: Result<Vec<Arc<Shard>>> =
            new.map(|n| Shard::new(&self.thread, &self.address, &self.clock, n).map(Arc::new)).collect();
        let new = new?;
        let entered = new.iter().map(async |shard| match shard.link.enter().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(target: "punctual", shard = shard.number, error, "a part of the store cannot be reached");
                Ok(())
            }
            entered => entered,
        });
        sharded::all(entered).await?;
        let shards = live.shards.iter().cloned().chain(new);
        Ok(Live { shards: shards.take(layout.live().into()).collect(), layout })
    }

    /// Refuses a store in another format, before anything of it is read.
    ///
    /// # Errors
    /// `Outdated` for a later one, `Unsupported` for one before.
    pub(crate) async fn check_format(&self) -> Result<()> {
        tell(&self.live().shards[0], 0).await.map(drop)
    }

    /// Looks how the store is spread, and makes that known to all shards if it is news.
    pub(crate) async fn refresh(&self) -> Result<Arc<Live>> {
        let live = self.live();
        let first = &live.shards[0];
        let mut cmd = redis::cmd("HGET");
        cmd.arg(&first.keys[STATE]).arg("layout");
        let row = reply::bytes_or_none(first.link.command(cmd).await?)?;
        if Layout::decode(&row, &[])?.epoch <= live.layout.epoch {
            return Ok(live);
        }
        let _alone = self.learning.lock().await;
        let live = self.live();
        let layout = read_layout(&live.shards[0]).await?;
        if live.layout.epoch < layout.epoch {
            self.adopt(&live, layout).await?;
        }
        Ok(self.live())
    }

    /// Does what is left to do of a change, and goes by the new layout from now on.
    async fn adopt(&self, live: &Live, layout: Layout) -> Result<()> {
        let mut live = self.opened(live, layout).await?;
        if !live.layout.is_told {
            let epoch = live.layout.epoch;
            sharded::all(live.shards.iter().map(|shard| tell(shard, epoch))).await?;
            match live.layout.pins.begun_by(epoch) {
                Some(queue) => sharded::queue::copy_one(&live, queue, 0, epoch).await?,
                None => sharded::queue::copy_all(&live, 0, epoch).await?,
            }
            live.shards[0].bell.announce(epoch.into());
            let told = Layout { is_told: true, ..live.layout.clone() };
            let args = vec![live.layout.encode(), told.encode()];
            // Somebody else may have been faster, or changed it again: then it is heard of.
            live.shards[0].call(&SCRIPTS.layout, &[], args).await?;
            live.layout = told;
            join_all(live.shards.iter().map(|shard| copies::leave(&live, shard))).await;
        }
        self.live.send_replace(Arc::new(live));
        Ok(())
    }

    /// The same for a call that may go by what is known here while shard 0, which has the layout, is away.
    pub(crate) async fn current(&self) -> Result<Arc<Live>> {
        let live = self.live();
        if sharded::lease::is_away(&live.shards, 0) {
            return Ok(live);
        }
        match self.refresh().await {
            Err(error) if 1 < live.shards.len() && fault::is_away(&error) => Ok(live),
            refreshed => refreshed,
        }
    }

    /// Whether a shard told of a later layout than this one.
    pub(crate) fn is_behind(live: &Live) -> bool {
        live.shards.iter().any(|shard| live.layout.epoch < shard.epoch())
    }

    /// Goes by the later layout that a shard told of, if one did: before jobs are taken, which must not wait for that, and
    /// before a wait.
    pub(crate) async fn catch_up(&self) {
        let live = self.live();
        if Self::is_behind(&live)
            && !sharded::lease::is_away(&live.shards, 0)
            && let Err(e) = self.refresh().await
        {
            tracing::debug!(target: "punctual", error = &e as &dyn std::error::Error, "could not learn of new shards");
        }
    }

    /// The shards, by a layout that knows those which ids of jobs name.
    pub(crate) async fn live_for(&self, mut jobs: impl Iterator<Item = JobId>) -> Result<Arc<Live>> {
        let live = self.live();
        if jobs.any(|id| !id.is_derived() && live.layout.live() <= id.shard()) {
            self.refresh().await
        } else {
            Ok(live)
        }
    }
}
