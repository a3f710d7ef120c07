//! One shard: a part of the jobs with all their state, under keys of one slot, and so on one server. Each verb is one
//! script on it, or the same script until it is done. What concerns several shards is in `sharded`.

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
                clock_offset::{Offset, Steady},
                io_thread::Thread,
                link::Link,
            },
            notify::{BLOCK, Heard, Notifier, Woken},
            scripts::{COMMON_KEYS, bytes::Bytes, reply::Reply, script::Script},
            sharded::quiet::Quiet,
            state::settings::Known,
            verbs::reserve::{Looked, Wake},
        },
    },
};

/// A shard and its connections.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Its number, from 0.
    pub(crate) number: u16,
    pub(crate) address: Address,
    pub(crate) clock: Clock,
    pub(crate) link: Link,
    /// For heartbeats, which must not wait after calls that wait for replicas or a disk.
    aside: Option<Link>,
    pub(crate) notifier: Notifier,
    known: Mutex<Known>,
    /// A steady clock, and how far the server's is ahead of it.
    steady: Steady,
    offset: Offset,
    /// The epoch in which the shard was last seen; see `layout`.
    epoch: AtomicU32,
    /// The epoch of the latest layout of which it is known to have a copy; see `copies`.
    copied: AtomicU32,
    /// The queues of which it has nothing.
    pub(crate) quiet: Quiet,
    /// The keys that every script names.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Where the next sweep continues that could not check all queues, and the next one that gives up kept jobs.
    pub(crate) sweeps_from: [Mutex<Vec<u8>>; 2],
    /// The times for which a test says that this process wakes.
    #[cfg(feature = "testing")]
    pub(crate) held: Mutex<Option<Vec<Timestamp>>>,
}

/// What a script notifies its caller of if it set aside a damaged member: see `lua/state/codec.lua`. No queue has such a name.
const DAMAGE: &str = "$damage";

/// How long a process that leaves a time to others waits after that time, at least, before it checks itself.
const LEFT_MIN: Duration = Duration::from_secs(5);
/// Up to this much longer, by the instance of its calls.
const LEFT_SPREAD_MS: u64 = 55_000;

impl Shard {
    /// Makes a shard whose server is checked when it is first used, so that an unavailable one does not keep a
    /// program from starting.
    ///
    /// # Errors
    /// `Unsupported` for certificates that cannot be used.
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
            notifier: Notifier::open(&link, BLOCK),
            link,
            aside,
            known: Mutex::default(),
            steady: Steady::start(clock),
            offset: Offset::default(),
            epoch: AtomicU32::new(0),
            copied: AtomicU32::new(0),
            quiet: Quiet::default(),
            keys: COMMON_KEYS.iter().map(|key| address.key(number, key)).collect(),
            sweeps_from: Default::default(),
            #[cfg(feature = "testing")]
            held: Mutex::default(),
        })
    }

    /// Returns whether it was unreachable a moment ago.
    pub(crate) fn is_away(&self) -> bool {
        self.link.is_away()
    }

    /// Returns a key of the shard.
    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        self.address.key(self.number, name)
    }

    /// Returns the key of a queue's notifications.
    pub(crate) fn notification_key(&self, queue: &str) -> Vec<u8> {
        self.address.notification_key(self.number, queue)
    }

    /// Returns the time to pass to a script; empty for the server's own.
    fn now_arg(&self) -> Vec<u8> {
        match &self.clock {
            Clock::System => Vec::new(),
            Clock::Manual(clock) => clock.now().as_ms().to_string().into_bytes(),
        }
    }

    /// Calls a script with the common keys, `notifications`, the time and `args`.
    pub(crate) async fn call(
        &self,
        script: &'static Script,
        notifications: &[Vec<u8>],
        args: Vec<Vec<u8>>,
    ) -> Result<Value> {
        let mut keys = self.keys.clone();
        keys.extend_from_slice(notifications);
        #[cfg(feature = "testing")]
        let script = if self.address.is_without_fast { script.without_fast() } else { script };
        let answer = self.link.call(script, &keys, &self.with_now(args)).await;
        // Not for other refusals: they can pass, as that of a user whose rights are being changed, and the notifications are for afterwards.
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Outdated) {
            self.notifier.leave_alone();
        }
        answer
    }

    /// Calls a script that returns an array.
    pub(crate) async fn ask(
        &self,
        script: &'static Script,
        notifications: &[Vec<u8>],
        args: Vec<Vec<u8>>,
    ) -> Result<Reply> {
        Reply::of(self.call(script, notifications, args).await?)
    }

    /// Calls a script of a tool, which names only its own keys.
    pub(crate) async fn call_tool(
        &self,
        script: &'static Script,
        keys: &[Vec<u8>],
        args: Vec<Vec<u8>>,
    ) -> Result<Value> {
        self.link.call(script, keys, &self.with_now(args)).await
    }

    /// Calls a script as [`call`](Self::call) does, in parallel to calls that wait to be confirmed.
    pub(crate) async fn call_aside(
        &self,
        script: &'static Script,
        notifications: &[Vec<u8>],
        args: Vec<Vec<u8>>,
    ) -> Result<Value> {
        let Some(aside) = &self.aside else { return self.call(script, notifications, args).await };
        // A server that was replaced by another one must not continue to say that leases are held.
        aside.follow(&self.link).await;
        let keys = [&self.keys[..], notifications].concat();
        aside.call(script, &keys, &self.with_now(args)).await
    }

    fn with_now(&self, args: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut all = Vec::with_capacity(args.len() + 1);
        all.push(self.now_arg());
        all.extend(args);
        all
    }

    /// Sends the notifications that a script left to its caller: name and time of each.
    pub(crate) fn notify(&self, notifications: &[u8]) -> Result<()> {
        let (mut notifications, mut named) = (Bytes(notifications), Vec::new());
        while !notifications.is_empty() {
            let (name, at) = (notifications.chunk()?.words(), notifications.time()?);
            if name == DAMAGE {
                tracing::warn!(target: "punctual", shard = self.number,
                    hint = "`punctual audit` tells of how many, and finds the jobs that they were of; --repair makes them dead, to be retried",
                    "members of sorted sets that something else damaged were removed");
            } else {
                named.push((name, at));
            }
        }
        self.notifier.notify(&named, self.server_now());
        Ok(())
    }

    /// Returns when a question is sent, by a steady clock.
    pub(crate) fn asks(&self) -> Timestamp {
        self.steady.now()
    }

    /// Returns the time of the server's clock, as far as known from the last answer.
    pub(crate) fn server_now(&self) -> Timestamp {
        let now = self.steady.now();
        match &self.clock {
            Clock::System => self.offset.apply(now),
            Clock::Manual(_) => now,
        }
    }

    /// Learns how far the server's clock is ahead. `asked`: when the question was sent.
    pub(crate) fn learn_clock(&self, asked: Timestamp, server: Timestamp) {
        if matches!(self.clock, Clock::System) {
            self.offset.learn(asked, server, self.steady.now());
        }
    }

    /// Returns the epoch in which it was last seen.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns the epoch of the latest layout of which it is known to have a copy.
    pub(crate) fn copied(&self) -> u32 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Notes that it has a copy of this epoch's layout, or of a later one.
    pub(crate) fn note_copied(&self, epoch: u32) {
        self.copied.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Notes that it was seen in this epoch.
    pub(crate) fn learn_epoch(&self, epoch: u32) {
        self.epoch.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Returns when there may be work in one of the queues, or after a while.
    ///
    /// The wait is noted at once, even if a notification of another shard ends it before it starts here.
    pub(crate) fn wait<'a>(
        &'a self,
        queues: &'a [String],
        at_most: Duration,
    ) -> impl Future<Output = Woken> + use<'a> {
        let heard = self.quiet.wait(queues);
        async move {
            let woken = self.notifier.wait(queues, at_most, &|| self.server_now()).await;
            if woken != Woken::Time {
                self.quiet.forget(queues);
            }
            drop(heard);
            woken
        }
    }

    /// Returns how long a reserve would find nothing, as far as known; see [`Quiet::lasts`].
    pub(crate) fn quiet_for(&self, request: &Reserve, follows_a_settle: bool) -> Option<Duration> {
        self.quiet.lasts(request, self.server_now(), self.notifier.heard().doubts, follows_a_settle)
    }

    /// Notes the answer to a reserve, or that there was none. `before`: what had been received when it was sent.
    /// Returns the answer as it is for a caller that leaves some times to others.
    pub(crate) fn reserved(&self, request: &Reserve, looked: Option<Looked>, before: Heard) -> Option<Batch> {
        self.quiet.learn(request, looked.as_ref().map(|looked| &looked.batch), before.doubts);
        let Looked { mut batch, wakes } = looked?;
        let looked_at =
            request.queues.iter().filter(|each| 0 < request.n && 0 < each.share.min(each.at_most));
        let names = looked_at.map(|each| each.queue.as_str());
        self.notifier.answered(names, batch.now, before, !batch.more);
        let (mut next, mut ours) = (None::<Timestamp>, None::<Timestamp>);
        for (each, (hold, Wake { at, is_ours })) in request.queues.iter().zip(wakes) {
            if hold == crate::store::redis::notify::Hold::FirstLook && at.is_none_or(|at| batch.now < at) {
                self.notifier.looked(&each.queue, before);
            }
            let Some(at) = at.filter(|at| batch.now < *at) else { continue };
            if is_ours {
                self.notifier.wake_at(&each.queue, at, &hold, before);
            } else {
                self.notifier.leave_to_others(&each.queue, before);
            }
            let looks_at = if is_ours { at } else { at.after(left_for(request)) };
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

    /// Returns when a process must check again that knows of something due in `next` and does not ask: then, if it
    /// holds a time.
    pub(crate) fn look_in(&self, request: &Reserve, next: Duration) -> Duration {
        let held = self.notifier.held(request.queues.iter().map(|each| each.queue.as_str()));
        match held {
            _ if next == Duration::MAX => next,
            Some(at) => at.since(self.server_now()).max(next).min(next + left_for(request)),
            None => next + left_for(request),
        }
    }

    /// Returns what this process knows of the settings of its queues.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how long the two processes that wake for a time have until another one checks itself, because both may be
/// dead. It varies, so that not all check at once.
fn left_for(request: &Reserve) -> Duration {
    LEFT_MIN + Duration::from_millis(request.call.instance % LEFT_SPREAD_MS)
}

/// Returns a number as scripts read it.
pub(crate) fn digits(n: impl Into<u64>) -> Vec<u8> {
    n.into().to_string().into_bytes()
}
