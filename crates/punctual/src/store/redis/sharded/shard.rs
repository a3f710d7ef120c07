//! One shard: a part of the jobs with all that belongs to them, under keys of one slot, hence on one server. Each verb is one
//! script on it, or the same one until it has done all; what spans shards is in `spread`.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use redis::Value;

use crate::{
    core::{
        error::{ErrorKind, Result},
        time::Timestamp,
    },
    store::{
        Batch, Reserve,
        clock::Clock,
        redis::{
            connection::{
                address::{Address, Wanted},
                clock_offset::Offset,
                io_thread::Thread,
                link::Link,
            },
            notify::{BLOCK, Doorbell, Heard, Rung},
            scripts::{COMMON_KEYS, bytes::Bytes, reply::Reply, script::Script},
            sharded::quiet::Quiet,
            state::settings::Known,
            verbs::reserve::{Looked, Wake},
        },
    },
};

/// A shard, and the way to it.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Its number, from 0.
    pub(crate) number: u16,
    pub(crate) address: Address,
    pub(crate) clock: Clock,
    pub(crate) link: Link,
    /// For heartbeats, which must not stand in line behind what waits for replicas or for a disk, where calls do.
    aside: Option<Link>,
    pub(crate) bell: Doorbell,
    known: Mutex<Known>,
    /// How far the server's clock is ahead of this machine's.
    offset: Offset,
    /// The epoch that the shard was last seen in; see `layout`.
    epoch: AtomicU32,
    /// The epoch of the latest layout that it is known to have a copy of; see `copies`.
    copied: AtomicU32,
    /// What it has nothing of.
    pub(crate) quiet: Quiet,
    /// The keys that every script names.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Where the next sweep goes on that could not look at all queues, and the next one that gives up what is kept.
    pub(crate) sweeps_from: [Mutex<Vec<u8>>; 2],
}

/// How long a process that leaves a time to others waits at least, after that time, before it looks by itself.
const LEFT_MIN: Duration = Duration::from_secs(5);
/// Up to so much longer, by the instance of its calls.
const LEFT_SPREAD_MS: u64 = 55_000;

impl Shard {
    /// A shard whose server is looked at when it is first used: one that is away must not keep a program from starting.
    ///
    /// # Errors
    /// `Unsupported` for certificates that can't be used.
    pub(crate) fn new(thread: &Arc<Thread>, address: &Address, clock: &Clock, number: u16) -> Result<Self> {
        let link = Link::new(thread, address, number)?;
        let aside = match address.durability() {
            Wanted::Fast => None,
            Wanted::Replicated(_) | Wanted::Full => Some(Link::beside(thread, address, number)?),
        };
        Ok(Self {
            number,
            address: address.clone(),
            clock: clock.clone(),
            bell: Doorbell::open(&link, BLOCK),
            link,
            aside,
            known: Mutex::default(),
            offset: Offset::default(),
            epoch: AtomicU32::new(0),
            copied: AtomicU32::new(0),
            quiet: Quiet::default(),
            keys: COMMON_KEYS.iter().map(|key| address.key(number, key)).collect(),
            sweeps_from: Default::default(),
        })
    }

    /// Whether it could not be reached a moment ago.
    pub(crate) fn is_away(&self) -> bool {
        self.link.is_away()
    }

    /// A key of the shard.
    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        self.address.key(self.number, name)
    }

    /// Where a queue's bell is.
    pub(crate) fn bell_of(&self, queue: &str) -> Vec<u8> {
        self.address.bell(self.number, queue)
    }

    /// The time to hand to a script: nothing, for the server's own.
    fn now_arg(&self) -> Vec<u8> {
        match &self.clock {
            Clock::System => Vec::new(),
            Clock::Manual(clock) => clock.now().as_ms().to_string().into_bytes(),
        }
    }

    /// Calls a script with the common keys, `bells`, the time and `args`.
    pub(crate) async fn call(
        &self,
        script: &'static Script,
        bells: &[Vec<u8>],
        args: Vec<Vec<u8>>,
    ) -> Result<Value> {
        let mut keys = self.keys.clone();
        keys.extend_from_slice(bells);
        let answer = self.link.call(script, &keys, &self.with_now(args)).await;
        if let Err(error) = &answer
            && matches!(error.kind(), ErrorKind::Outdated | ErrorKind::Unsupported)
        {
            self.bell.leave_alone();
        }
        answer
    }

    /// The same, of a script that answers an array.
    pub(crate) async fn ask(
        &self,
        script: &'static Script,
        bells: &[Vec<u8>],
        args: Vec<Vec<u8>>,
    ) -> Result<Reply> {
        Reply::of(self.call(script, bells, args).await?)
    }

    /// Calls a script of a tool, which names its own keys alone.
    pub(crate) async fn call_tool(
        &self,
        script: &'static Script,
        keys: &[Vec<u8>],
        args: Vec<Vec<u8>>,
    ) -> Result<Value> {
        self.link.call(script, keys, &self.with_now(args)).await
    }

    /// Calls a script without bells, beside calls that wait until they are confirmed.
    pub(crate) async fn call_aside(&self, script: &'static Script, args: Vec<Vec<u8>>) -> Result<Value> {
        let Some(aside) = &self.aside else { return self.call(script, &[], args).await };
        // A server that was left for another one must not go on to say that leases are held.
        aside.follow(&self.link).await;
        aside.call(script, &self.keys, &self.with_now(args)).await
    }

    fn with_now(&self, args: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut all = Vec::with_capacity(args.len() + 1);
        all.push(self.now_arg());
        all.extend(args);
        all
    }

    /// Rings the bells that a script left to its caller: name and time of each.
    pub(crate) fn ring(&self, rings: &[u8]) -> Result<()> {
        let (mut rings, mut named) = (Bytes(rings), Vec::new());
        while !rings.is_empty() {
            named.push((rings.chunk()?.text()?, rings.time()?));
        }
        self.bell.ring(&named, self.server_now());
        Ok(())
    }

    /// What the server's clock shows, as far as the last answer tells.
    pub(crate) fn server_now(&self) -> Timestamp {
        let now = self.clock.now();
        match &self.clock {
            Clock::System => self.offset.apply(now),
            Clock::Manual(_) => now,
        }
    }

    /// Learns how far the server's clock is ahead of this machine's.
    pub(crate) fn learn_clock(&self, asked: Timestamp, server: Timestamp) {
        if matches!(self.clock, Clock::System) {
            self.offset.learn(asked, server, self.clock.now());
        }
    }

    /// The epoch that it was last seen in.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// The epoch of the latest layout that it is known to have a copy of.
    pub(crate) fn copied(&self) -> u32 {
        self.copied.load(Ordering::Relaxed)
    }

    /// It has a copy of this epoch's layout, or of a later one.
    pub(crate) fn note_copied(&self, epoch: u32) {
        self.copied.fetch_max(epoch, Ordering::Relaxed);
    }

    /// It was seen in this epoch.
    pub(crate) fn learn_epoch(&self, epoch: u32) {
        self.epoch.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Comes back when there may be work in one of the queues, or after a while.
    ///
    /// It is noted at once that somebody waits, also where another shard's ring ends the wait before it begins here.
    pub(crate) fn wait<'a>(
        &'a self,
        queues: &'a [String],
        at_most: Duration,
    ) -> impl Future<Output = Rung> + use<'a> {
        let heard = self.quiet.wait(queues);
        async move {
            let rung = self.bell.wait(queues, at_most, &|| self.server_now()).await;
            if rung != Rung::Time {
                self.quiet.forget(queues);
            }
            drop(heard);
            rung
        }
    }

    /// How long a reserve would find nothing, as far as is known; see [`Quiet::lasts`].
    pub(crate) fn quiet_for(&self, want: &Reserve, follows_a_settle: bool) -> Option<Duration> {
        self.quiet.lasts(want, self.server_now(), self.bell.heard().doubts, follows_a_settle)
    }

    /// Takes note of the answer to a reserve, or of none; `before`: what the bell had heard when it was sent. Returns it as it is for
    /// a caller that leaves some times to others.
    pub(crate) fn reserved(&self, want: &Reserve, looked: Option<Looked>, before: Heard) -> Option<Batch> {
        self.quiet.learn(want, looked.as_ref().map(|looked| &looked.batch), before.doubts);
        let Looked { mut batch, wakes } = looked?;
        let looked_at = want.wants.iter().filter(|each| 0 < want.n && 0 < each.share.min(each.at_most));
        let names = looked_at.map(|each| each.queue.as_str());
        self.bell.answered(names, batch.now, before, !batch.more);
        let (mut next, mut ours) = (None::<Timestamp>, None::<Timestamp>);
        for (each, (hold, Wake { at, is_ours })) in want.wants.iter().zip(wakes) {
            let Some(at) = at.filter(|at| batch.now < *at) else { continue };
            if is_ours {
                self.bell.wake_at(&each.queue, at, &hold, before);
            } else {
                self.bell.leave_to_others(&each.queue, before);
            }
            let looks_at = if is_ours { at } else { at.after(left_for(want)) };
            next = next.into_iter().chain([at]).min();
            ours = ours.into_iter().chain([looks_at]).min();
        }
        if let (Some(due), Some(next), Some(ours)) = (batch.next_due, next, ours)
            && !batch.more
        {
            batch.next_due = Some(due + ours.since(next));
        }
        Some(batch)
    }

    /// When a process is to look again that knows of something due in `next`, where it does not ask: then, if it holds a time.
    pub(crate) fn look_in(&self, want: &Reserve, next: Duration) -> Duration {
        let held = self.bell.held(want.wants.iter().map(|each| each.queue.as_str()));
        match held {
            _ if next == Duration::MAX => next,
            Some(at) => at.since(self.server_now()).max(next).min(next + left_for(want)),
            None => next + left_for(want),
        }
    }

    /// What this process knows of the settings of its queues.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long the two that wake for a time have until another process looks by itself: they may both be dead. Not all others at once.
fn left_for(want: &Reserve) -> Duration {
    LEFT_MIN + Duration::from_millis(want.call.instance % LEFT_SPREAD_MS)
}

/// A number as scripts read it.
pub(crate) fn digits(n: impl Into<u64>) -> Vec<u8> {
    n.into().to_string().into_bytes()
}
