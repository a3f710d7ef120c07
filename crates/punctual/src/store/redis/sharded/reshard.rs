//! Changes the number of shards of a store in use.
//!
//! One write decides it: the layout in shard 0 is replaced if it is still the one that was read. Then each shard
//! learns the new epoch, and accepts no jobs of the one before. Its callers learn of it with their next answer. Jobs
//! stay where they are. A shard that accepts no more jobs is asked for jobs until it is empty.
//!
//! ```text
//! settings to the new shards ──► layout in shard 0 ──► epoch in every shard ──► settings: shares ──► notification
//!                                       │                                                                 │
//!           any process that opens the store or learns           idle workers receive it, all of them at shard 0,
//!           of the epoch continues from here (`adopt`)           and each notifies the next one
//! ```
//!
//! Pinning a queue, or ending that, is a change of the layout with the same number of shards.

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

/// How often others can change the layout meanwhile.
const TRIES_MAX: usize = 16;

/// How long a change of the number of shards is continued while a server is unavailable, because others may take
/// over.
const RESHARD_MAX: Duration = Duration::from_secs(30);
/// The pause before it is continued.
const RESHARD_PAUSE: Duration = Duration::from_millis(250);

/// The shards of a store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Shards {
    /// The number of shards that accept jobs: 0 to this minus 1.
    pub count: u16,
    /// These shards, and after them those that accept no jobs any more but may hold some.
    pub shards: Vec<ShardInfo>,
}

/// One shard of a store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ShardInfo {
    /// Its number, which is part of the ids of its jobs.
    pub number: u16,
    /// Whether it accepts jobs.
    #[serde(rename = "open")]
    pub is_open: bool,
    /// The number of its jobs in any state.
    pub jobs: u64,
    /// The number of remembered ids and held unique keys.
    pub kept: u64,
}

/// What a shard reports about itself.
pub(crate) struct Told {
    /// The epoch in which it was before.
    epoch: u32,
    jobs: u64,
    kept: u64,
    /// The number of groups with stored state.
    groups: u64,
    /// Whether the search for misplaced jobs is complete in the epoch of the shard.
    is_searched: bool,
}

impl Told {
    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns whether it has nothing to which only an outgrown number leads.
    const fn is_settled(&self) -> bool {
        self.is_searched || self.jobs + self.kept + self.groups == 0
    }
}

/// Reports the epoch to a shard; 0 reports nothing.
pub(crate) async fn tell(shard: &Shard, epoch: u32) -> Result<Told> {
    tell_with(shard, epoch, Vec::new()).await
}

/// Reports the epoch with a copy of its layout and pins, once all shards know of it.
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

/// Returns the layout with its pins, as stored in shard 0, or as copied to another shard.
pub(crate) async fn read_layout(shard: &Shard) -> Result<Layout> {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&shard.keys[STATE]).arg("layout").arg("pins");
    let mut reply = Reply::of(shard.link.command(cmd).await?)?;
    let (row, pins) = (reply.bytes_or_none()?, reply.bytes_or_none()?);
    Layout::decode(&row, &pins)
}

impl RedisStore {
    /// Returns the shards of the store.
    ///
    /// Also forgets shards that accept no jobs any more and are empty, and numbers of shards that are not needed any
    /// more.
    ///
    /// # Errors
    /// Any error of a shard that cannot be reached.
    pub async fn shards(&self) -> Result<Shards> {
        let live = self.refresh().await?;
        let told = sharded::all(live.shards.iter().map(|shard| tell(shard, 0))).await?;
        let seen = told.iter().map(|told| told.epoch).max().unwrap_or_default();
        let holding = told.iter().rposition(|told| 0 < told.jobs + told.kept).map_or(0, |last| last + 1);
        let mut without = live.layout.without(holding as u16, seen);
        // A job follows an outgrown number only to other jobs of its key; if there are none, none are added. A shard
        // that does not know of the layout yet can still accept jobs by an earlier one. The answers are confirmed as
        // writes are (`durability`). So a server that takes over also knows that a search is complete, and everything
        // on which that depends.
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

    /// Changes the number of shards of the store, 1 to 1,024, while it is in use.
    ///
    /// Jobs stay where they are and keep their ids. Unique keys and idempotency keys keep their guarantees. Repeat
    /// the call after a failure: it continues. If a server is unavailable, it continues for 30 s, because another one
    /// may take over.
    ///
    /// If the future is dropped, the layout may have been changed already. Any process that opens the store or reads
    /// its shards then finishes the change.
    ///
    /// # Errors
    /// `Invalid` for an impossible number. `Conflict` if a queue's limits are too low to be divided, or after too
    /// many changes. Otherwise any error of a shard that cannot be reached.
    pub async fn reshard(&self, shards: u16) -> Result<Shards> {
        let begin = Instant::now();
        loop {
            match self.reshard_once(shards).await {
                // Servers may be taking over from each other. A partly done change is continued.
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
            // A paused queue must be paused in the new shards before their first job.
            let wider = self.opened(&live, changed.clone()).await?;
            sharded::queue::copy_all(&wider, live.shards.len(), live.layout.epoch).await?;
            self.decide(&live, &changed).await?;
        }
        Err(Error::new(ErrorKind::Conflict, "another process keeps changing the number of shards"))
    }

    /// Refuses a number of shards that is too large for the limits of a queue.
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

    /// Changes the placement of a queue, if the layout is still that of `live`; returns the one in force.
    pub(crate) async fn place_queue(&self, live: &Live, queue: &str, to: Placement) -> Result<Arc<Live>> {
        let told = sharded::all(live.shards.iter().map(|shard| tell(shard, 0))).await?;
        let seen = told.iter().map(|told| told.epoch).max().unwrap_or_default();
        if live.layout.epoch < seen {
            // Also if shard 0 has lost a layout: an operator decides whether to continue from an older one.
            return self.refresh().await;
        }
        let now = read::now(&live.shards[0]).await?;
        self.decide(live, &live.layout.placing(queue, to, seen, now)?).await
    }

    /// Replaces the layout by `new` if it is still that of `live`; returns the one in force.
    async fn decide(&self, live: &Live, new: &Layout) -> Result<Arc<Live>> {
        let mut args = vec![live.layout.encode(), new.encode()];
        if new.pins != live.layout.pins {
            args.push(new.pins.encode());
        }
        let set = live.shards[0].call(&SCRIPTS.layout, &[], args).await?;
        reply::int(&set)?;
        self.refresh().await
    }

    /// Returns the shards of another layout, after checking new ones. A shard that cannot be reached is checked
    /// later, so that the others do not wait for it.
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

    /// Refuses a store in another format before anything of it is read. Returns the epoch that shard 0 was informed of.
    ///
    /// # Errors
    /// `Outdated` for a later format, `Unsupported` for an earlier one, `Corrupt` if the state is lost.
    pub(crate) async fn check_format(&self) -> Result<u32> {
        Ok(tell(&self.live().shards[0], 0).await?.epoch)
    }

    /// Reads the layout, and reports it to all shards if it is new.
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

    /// Finishes a change, and uses the new layout from now on.
    async fn adopt(&self, live: &Live, layout: Layout) -> Result<()> {
        let mut live = self.opened(live, layout).await?;
        if !live.layout.is_told {
            let epoch = live.layout.epoch;
            sharded::all(live.shards.iter().map(|shard| tell(shard, epoch))).await?;
            match live.layout.pins.begun_by(epoch) {
                Some(queue) => sharded::queue::copy_one(&live, queue, 0, epoch).await?,
                None => sharded::queue::copy_all(&live, 0, epoch).await?,
            }
            live.shards[0].notifier.announce(epoch.into());
            let told = Layout { is_told: true, ..live.layout.clone() };
            let args = vec![live.layout.encode(), told.encode()];
            // Another process may have been faster, or may have changed it again. It is then read.
            live.shards[0].call(&SCRIPTS.layout, &[], args).await?;
            live.layout = told;
            join_all(live.shards.iter().map(|shard| copies::leave(&live, shard))).await;
        }
        self.live.send_replace(Arc::new(live));
        Ok(())
    }

    /// Refreshes the layout for a call that can use the known one if shard 0, which has the layout, is unavailable.
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

    /// Returns whether a shard reported a later layout than this one.
    pub(crate) fn is_behind(live: &Live) -> bool {
        live.shards.iter().any(|shard| live.layout.epoch < shard.epoch())
    }

    /// Uses the later layout that a shard reported, if one did. This happens before jobs are taken, which must not
    /// wait for it, and before a wait.
    pub(crate) async fn catch_up(&self) {
        let live = self.live();
        if Self::is_behind(&live)
            && !sharded::lease::is_away(&live.shards, 0)
            && let Err(e) = self.refresh().await
        {
            tracing::debug!(target: "punctual", error = &e as &dyn std::error::Error, "could not learn of new shards");
        }
    }

    /// Returns the shards by a layout that has all shards named in these ids.
    pub(crate) async fn live_for(&self, mut jobs: impl Iterator<Item = JobId>) -> Result<Arc<Live>> {
        let live = self.live();
        if jobs.any(|id| !id.is_derived() && live.layout.live() <= id.shard()) {
            self.refresh().await
        } else {
            Ok(live)
        }
    }
}
