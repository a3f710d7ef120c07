//! Waiting for work without polling.
//!
//! Each queue has a bell on the server, a sorted set of four members, and of times that processes gave back: rings, whose score says
//! from when on there is work (0: now). A ring is popped by one process, of all that listen, and wakes one of its waits:
//!
//! ```text
//! on the server ──(popped by the listener)──► in the hall ──(its time has come, a wait takes it)──► Work
//!       ▲                                          │
//!       └────────(nobody here listens any more)────┘
//! ```
//!
//! No ring is ever in the hands of a wait that may be dropped: it is in the hall until it is taken, and taking it ends the
//! wait. And none is trusted to come, since whoever popped it may be dead: a second ring, the spare, tells another process
//! to look a little later. After whatever may have cost a ring here all come back to look for work themselves. So the end
//! of a wait has only to repair what nobody here can notice: bells that were deleted by hand, or two processes that died
//! with the two rings.
//!
//! A change of the store itself has a bell of its own, which each listener passes on to the next.
//!
//! A time wakes two processes, be it that of a job or the end of a lease: one then, and another one a second later. Which time two
//! wake for stands in the queue's row. Both hear of it by rings of their own, which no ring for now replaces; or a process that
//! looked and waits is the first of them, and only the other one hears of it. Any other process leaves the time to these two, and
//! looks by itself some seconds later: they may both be dead.

pub(crate) mod listener;
pub(crate) mod waiters;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::Cmd;
use tokio::{
    select,
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::waiters::{Hall, Look, Unheard};
pub(crate) use self::waiters::{Heard, Hold};
use crate::{
    core::time::Timestamp,
    store::{
        is_of_queue,
        redis::connection::{
            io_thread::Thread,
            link::{Line, Link},
        },
    },
};
use listener::Listener;

/// How long the server holds an idle listener's call: one command in this time is all that waiting costs.
pub(crate) const BLOCK: Duration = Duration::from_mins(1);

/// How much later than a ring its spare is due; as in `lua/keys.lua`.
pub(crate) const SPARE: Duration = Duration::from_secs(1);

/// Why a wait came back. Whatever it is, the next thing to do is to reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// Somebody rang: there may be work.
    Work,
    /// A ring may have been lost.
    Doubt,
    /// The time was over.
    Time,
}

/// The bells of one store's queues, as heard from one process.
#[derive(Debug)]
pub(crate) struct Doorbell {
    shared: Arc<Shared>,
    thread: Arc<Thread>,
    closing: CancellationToken,
}

/// What the waits and the listener share.
#[derive(Debug)]
pub(crate) struct Shared {
    line: Arc<Line>,
    hall: Mutex<Hall>,
    /// Tells the listener that other queues are listened to, or none.
    changed: Notify,
    /// Whether the store has another format: nothing goes back to it.
    is_foreign: AtomicBool,
}

impl Shared {
    fn hall(&self) -> MutexGuard<'_, Hall> {
        self.hall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_bell(&self) -> Vec<u8> {
        self.line.route().key("changed")
    }

    fn announcement(&self, change: u64) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("ZADD").arg(self.change_bell()).arg("GT").arg(change).arg("r");
        cmd
    }

    /// What is no queue's is of passing interest: rings that nobody heard go.
    fn passing<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<Cmd> {
        let expiry = |name| {
            let mut cmd = Cmd::new();
            cmd.arg("PEXPIRE").arg(self.line.route().bell(name)).arg(BLOCK.as_millis() as u64);
            cmd
        };
        names.filter(|name| !is_of_queue(name)).map(expiry).collect()
    }

    /// Puts the rings of a queue on the server, where the earliest of a member counts.
    fn ring(&self, ring: &Unheard) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("ZADD").arg(self.line.route().bell(&ring.queue)).arg("LT");
        for (kind, at) in ring.rings() {
            cmd.arg(at.as_ms()).arg(Unheard::member(kind, at));
        }
        cmd
    }
}

impl Doorbell {
    /// Listens on the link's thread, over a connection of its own that opens with the first wait. `block` is [`BLOCK`]; tests
    /// take less.
    pub(crate) fn open(link: &Link, block: Duration) -> Self {
        let thread = Arc::clone(link.thread());
        let (hall, changed) = (Mutex::default(), Notify::new());
        let is_foreign = AtomicBool::new(false);
        let shared = Arc::new(Shared { line: Arc::clone(link.line()), hall, changed, is_foreign });
        let closing = thread.closing();
        thread.spawn(Listener::new(Arc::clone(&shared), block, closing.clone()).run());
        Self { shared, thread, closing }
    }

    /// Comes back as soon as there may be work in one of the queues: when a ring for it is there whose time has come by
    /// `clock`, the server's time as far as it is known here. Of several waits for a queue one ring ends one.
    ///
    /// May be dropped at any time: a ring that it did not answer is there for the next wait, here or elsewhere.
    pub(crate) async fn wait(
        &self,
        queues: &[String],
        at_most: Duration,
        clock: &(dyn Fn() -> Timestamp + Sync),
    ) -> Rung {
        let end = Instant::now().checked_add(at_most);
        let stay = self.enter(queues);
        loop {
            let now = clock();
            let look = {
                let mut hall = self.shared.hall();
                hall.learn_clock(std::time::Instant::now(), now);
                hall.look(stay.id, now)
            };
            let until_due = match look {
                Look::Due => return Rung::Work,
                Look::Doubt => return Rung::Doubt,
                Look::Later(at) => at.since(now),
                Look::Nothing => Duration::MAX,
            };
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Rung::Time;
            }
            select! {
                () = stay.notify.notified() => {}
                () = sleep(until_due.min(left)) => {}
            }
        }
    }

    /// Rings for queues at `now`: there is work from this instant on, 0 for now. With their spares. Nobody waits for it to
    /// be done, and nothing depends on it.
    pub(crate) fn ring(&self, rings: &[(String, Timestamp)], now: Timestamp) {
        let ring = |(queue, at): &(String, Timestamp)| {
            let spare = (*at).max(now).after(SPARE);
            self.shared.ring(&Unheard {
                queue: queue.clone(),
                first: Some(*at),
                spare: Some(spare),
                ..Unheard::default()
            })
        };
        let names = rings.iter().map(|(name, _)| name.as_str());
        self.send(rings.iter().map(ring).chain(self.shared.passing(names)).collect());
    }

    /// What has been heard so far.
    pub(crate) fn heard(&self) -> Heard {
        self.shared.hall().heard()
    }

    /// Somebody here has looked into these queues at `now`, by the server's clock, by a call that was sent when so much had been
    /// heard: what rang before is answered, and its spares need no look of their own. `is_all`: nothing is left there for now.
    pub(crate) fn answered<'a>(
        &self,
        queues: impl Iterator<Item = &'a str>,
        now: Timestamp,
        before: Heard,
        is_all: bool,
    ) {
        self.shared.hall().answered(queues, now, before, is_all);
    }

    /// Which times this process wakes for, of a queue.
    pub(crate) fn hold(&self, queue: &str) -> Hold {
        self.shared.hall().hold(queue, std::time::Instant::now())
    }

    /// The store answered a call that had this hold, before which so much had been heard: this process is to wake for a queue then.
    pub(crate) fn wake_at(&self, queue: &str, at: Timestamp, hold: &Hold, before: Heard) {
        let back = self.shared.hall().wake_at(queue, at, hold, before, std::time::Instant::now());
        if let Some(ring) = back {
            self.send(vec![self.shared.ring(&ring)]);
        }
    }

    /// The store answered a call, before which so much had been heard: others wake for a queue.
    pub(crate) fn leave_to_others(&self, queue: &str, before: Heard) {
        self.shared.hall().leave_to_others(queue, before);
    }

    /// The earliest time that this process wakes for by itself, of these queues.
    pub(crate) fn held<'a>(&self, queues: impl Iterator<Item = &'a str>) -> Option<Timestamp> {
        self.shared.hall().held(queues)
    }

    /// The store has another format than this version knows: nothing of what rang here goes back to it.
    pub(crate) fn leave_alone(&self) {
        self.shared.is_foreign.store(true, Ordering::Relaxed);
        drop(self.shared.hall().all());
    }

    /// Forgets all that rang here: nothing of it goes back to the server.
    #[cfg(feature = "testing")]
    pub(crate) fn forget(&self) {
        drop(self.shared.hall().all());
    }

    /// Ends the waits of all processes, one after another, since the store has changed; `change` is above those before.
    pub(crate) fn announce(&self, change: u64) {
        self.send(vec![self.shared.announcement(change)]);
    }

    fn send(&self, cmds: Vec<Cmd>) {
        if cmds.is_empty() {
            // The client refuses to send nothing, as if its connection were broken.
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.thread.spawn(async move {
            if let Err(e) = shared.line.commands(&cmds).await {
                tracing::debug!(error = &e as &dyn std::error::Error, "could not ring");
            }
        });
    }

    fn enter(&self, queues: &[String]) -> Stay<'_> {
        let notify = Arc::new(Notify::new());
        let entered = self.shared.hall().enter(queues, &notify);
        if entered.is_news {
            self.shared.changed.notify_one();
        }
        Stay { shared: &self.shared, id: entered.id, notify }
    }
}

impl Drop for Doorbell {
    /// Rings that nobody answered go back to the server.
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// A wait's stay in the hall.
struct Stay<'a> {
    shared: &'a Shared,
    id: u64,
    notify: Arc<Notify>,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        // The system's time, since a runtime's own may stand still.
        if self.shared.hall().leave(self.id, std::time::Instant::now()) {
            self.shared.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, pin::pin, time::Instant as SystemInstant};

    use redis::Value;
    use tokio::{task::yield_now, time::timeout};

    use super::*;
    use crate::store::{
        clock::Clock,
        redis::{connection::address::Address, server::Server},
    };

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(20);
    const NOW: Timestamp = Timestamp::saturating_from_ms(0);

    fn clock() -> Timestamp {
        Clock::System.now()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// A store's connections.
    struct House {
        bell: Doorbell,
        link: Link,
    }

    impl House {
        async fn at(url: &str, block: Duration) -> Self {
            let (thread, address) = (Arc::new(Thread::start().unwrap()), Address::parse(url).unwrap());
            let link = Link::new(&thread, &address, 0).unwrap();
            link.enter().await.unwrap();
            Self { bell: Doorbell::open(&link, block), link }
        }

        async fn wait(&self, queues: &[&str]) -> Rung {
            self.bell.wait(&names(queues), LONG, &clock).await
        }

        fn ring(&self, queue: &str, at: Timestamp) {
            let ring = Unheard { queue: queue.to_owned(), first: Some(at), ..Unheard::default() };
            self.bell.send(vec![self.bell.shared.ring(&ring)]);
        }

        /// Comes back when so many connections wait for a ring.
        async fn until_blocked(&self, n: usize) {
            let blocked = async || self.info("clients").await.contains(&format!("blocked_clients:{n}\r\n"));
            let begin = SystemInstant::now();
            while !blocked().await {
                assert!(begin.elapsed() < LONG, "{}", self.info("clients").await);
                yield_now().await;
            }
        }

        async fn info(&self, section: &str) -> String {
            let mut cmd = Cmd::new();
            cmd.arg("INFO").arg(section);
            match self.link.command(cmd).await.unwrap() {
                Value::BulkString(text) => String::from_utf8(text).unwrap(),
                other => panic!("{other:?}"),
            }
        }

        /// The ring on the server.
        async fn score(&self, queue: &str) -> Option<u64> {
            let mut cmd = Cmd::new();
            cmd.arg("ZSCORE").arg(self.bell.shared.line.route().bell(queue)).arg("r");
            match self.link.command(cmd).await.unwrap() {
                Value::BulkString(score) => Some(str::from_utf8(&score).unwrap().parse().unwrap()),
                _ => None,
            }
        }
    }

    #[tokio::test]
    async fn a_ring_of_another_process_ends_a_wait() {
        let url = Server::shared().url();
        let (here, there) = (House::at(&url, BLOCK).await, House::at(&url, BLOCK).await);
        let ring = async {
            yield_now().await;
            there.ring("mail\0{1}", NOW);
        };
        let (rung, ()) = tokio::join!(here.wait(&["bulk", "mail\0{1}"]), ring);
        assert_eq!(rung, Rung::Work);
        there.ring("bulk", NOW);
        assert_eq!(here.wait(&["bulk"]).await, Rung::Work);
        assert_eq!(here.bell.wait(&names(&["bulk"]), Duration::ZERO, &clock).await, Rung::Time);
    }

    /// Of two times that lie there, neither is taken for the other: which of them is in the queue's row is not known here.
    #[tokio::test]
    async fn a_time_that_comes_back_stands_beside_one_that_a_script_left() {
        let here = House::at(&Server::shared().url(), BLOCK).await;
        let bell = here.bell.shared.line.route().bell("times");
        let (mut left, mut count) = (Cmd::new(), Cmd::new());
        left.arg("ZADD").arg(&bell).arg(5).arg("t");
        count.arg("ZCARD").arg(&bell);
        here.link.command(left).await.unwrap();
        let at = Timestamp::saturating_from_ms(7);
        let ring = Unheard { queue: "times".to_owned(), times: [at].into(), ..Unheard::default() };
        here.link.command(here.bell.shared.ring(&ring)).await.unwrap();
        assert_eq!(here.link.command(count).await.unwrap(), Value::Int(2));
    }

    #[tokio::test]
    async fn a_ring_that_dies_with_its_process_has_a_spare() {
        let server = Server::start(&[]);
        let url = server.url();
        let (dead, here) = (House::at(&url, BLOCK).await, House::at(&url, BLOCK).await);
        let mut eaten = pin!(dead.wait(&["mail"]));
        select! {
            _ = &mut eaten => panic!("nobody rang"),
            () = here.until_blocked(1) => {}
        }
        let mut wait = pin!(here.wait(&["mail"]));
        select! {
            _ = &mut wait => panic!("nobody rang"),
            () = here.until_blocked(2) => {}
        }
        // Who waits longest gets the ring; it never answers it.
        let rung = clock();
        here.bell.ring(&[("mail".to_owned(), NOW)], rung);
        assert_eq!(wait.await, Rung::Work);
        assert!(rung.after(SPARE) <= clock());
        assert_eq!(eaten.await, Rung::Work);
    }

    #[tokio::test]
    async fn a_ring_for_later_ends_a_wait_then_and_not_before() {
        let here = House::at(&Server::shared().url(), BLOCK).await;
        let due = clock().after(Duration::from_millis(60));
        here.ring("mail", due.after(LONG));
        here.ring("mail", due);
        here.ring("mail", due.after(LONG));
        assert_eq!(here.wait(&["mail"]).await, Rung::Work);
        assert!(due <= clock());
    }

    #[tokio::test]
    async fn one_ring_ends_one_of_two_waits() {
        let here = House::at(&Server::shared().url(), BLOCK).await;
        let queues = ["mail"];
        let (mut first, mut second) = (pin!(here.wait(&queues)), pin!(here.wait(&queues)));
        here.ring("mail", NOW);
        let first_is_over = select! {
            rung = &mut first => { assert_eq!(rung, Rung::Work); true }
            rung = &mut second => { assert_eq!(rung, Rung::Work); false }
        };
        let other = if first_is_over { second } else { first };
        let mut other = pin!(other);
        assert!(timeout(Duration::from_millis(20), &mut other).await.is_err());
        here.ring("mail", NOW);
        assert_eq!(other.await, Rung::Work);
    }

    #[tokio::test]
    async fn a_wait_that_is_dropped_loses_no_ring() {
        let here = House::at(&Server::shared().url(), BLOCK).await;
        for n in 0..150 {
            here.ring("mail", NOW);
            // From before the block begins to after the grace.
            let early = timeout(Duration::from_micros(n % 50 * 60), here.wait(&["mail"])).await;
            if early.is_err() {
                assert_eq!(here.wait(&["mail"]).await, Rung::Work, "{n}");
            }
        }
    }

    #[tokio::test]
    async fn what_rings_for_nobody_is_there_for_other_processes() {
        let server = Server::start(&[]);
        let url = server.url();
        let (here, there) = (House::at(&url, BLOCK).await, House::at(&url, BLOCK).await);
        let later = clock().after(LONG);
        {
            // It takes the ring, and then its wait is dropped.
            let mut wait = pin!(here.wait(&["mail"]));
            select! {
                _ = &mut wait => panic!("nobody rang"),
                () = here.until_blocked(1) => {}
            }
            here.ring("mail", later);
            let taken = async {
                while here.score("mail").await.is_some() {
                    yield_now().await;
                }
            };
            select! {
                _ = &mut wait => panic!("it is for later"),
                () = taken => {}
            }
        }
        // Nothing blocks any more, and the ring is back with its time.
        here.until_blocked(0).await;
        let begin = SystemInstant::now();
        while here.score("mail").await.is_none() {
            assert!(begin.elapsed() < LONG);
            yield_now().await;
        }
        assert_eq!(here.score("mail").await, Some(later.as_ms()));
        there.ring("mail", NOW);
        assert_eq!(there.wait(&["mail"]).await, Rung::Work);
    }

    #[tokio::test]
    async fn a_ring_that_died_with_its_caller_is_doubted_when_the_block_ends() {
        let here = House::at(&Server::shared().url(), Duration::from_millis(200)).await;
        let queues = ["mail"];
        let mut wait = pin!(here.wait(&queues));
        let still = timeout(Duration::from_millis(700), &mut wait).await;
        assert!(still.is_err(), "nothing rang, and nobody left a ring: {still:?}");
        let mut left = Cmd::new();
        left.arg("HSET").arg(here.bell.shared.line.route().key("s")).arg("left").arg(1);
        here.link.command(left).await.unwrap();
        assert_eq!(wait.await, Rung::Doubt);
        let again = timeout(Duration::from_millis(700), here.wait(&queues)).await;
        assert!(again.is_err(), "it is doubted once: {again:?}");
    }

    #[tokio::test]
    async fn ringing_for_nobody_leaves_the_connection_as_it_is() {
        let here = House::at(&Server::shared().root_url(), BLOCK).await;
        let who = async || {
            let mut cmd = Cmd::new();
            cmd.arg("CLIENT").arg("ID");
            here.link.command(cmd).await.unwrap()
        };
        let before = who().await;
        here.bell.ring(&[], NOW);
        for _ in 0..10 {
            assert_eq!(who().await, before);
        }
    }

    #[tokio::test]
    async fn other_queues_are_heard_at_once() {
        let server = Server::start(&[]);
        let here = House::at(&server.url(), BLOCK).await;
        let mut mail = pin!(here.wait(&["mail"]));
        select! {
            _ = &mut mail => panic!("nobody rang"),
            () = here.until_blocked(1) => {}
        }
        here.ring("bulk", NOW);
        let bulk = here.wait(&["bulk"]);
        select! {
            _ = &mut mail => panic!("nobody rang for it"),
            rung = bulk => assert_eq!(rung, Rung::Work),
        }
        here.ring("mail", NOW);
        assert_eq!(mail.await, Rung::Work);
    }

    #[tokio::test]
    async fn idle_waiting_costs_a_block_with_a_look_behind_it_and_nothing_else() {
        let server = Server::start(&[]);
        let here = House::at(&server.url(), Duration::from_millis(150)).await;
        let mut wait = pin!(here.wait(&["mail", "bulk"]));
        let look = async {
            here.until_blocked(1).await;
            let mut reset = Cmd::new();
            reset.arg("CONFIG").arg("RESETSTAT");
            here.link.command(reset).await.unwrap();
            // Another wait for the same queues needs nothing of the server.
            let rung = here.bell.wait(&names(&["bulk"]), Duration::from_millis(700), &clock).await;
            assert_eq!(rung, Rung::Time);
            here.info("commandstats").await
        };
        let stats = select! {
            _ = &mut wait => panic!("nobody rang"),
            stats = look => stats,
        };
        let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let mut names = BTreeSet::new();
        for (name, rest) in calls {
            if ["bzpopmin", "hget"].contains(&name) {
                let calls: u32 = rest.split(',').next().unwrap().parse().unwrap();
                // The server ends a block up to 100 ms late.
                assert!((2..=5).contains(&calls), "{stats}");
            }
            names.insert(name);
        }
        assert_eq!(names, BTreeSet::from(["bzpopmin", "config|resetstat", "hget"]), "{stats}");
    }

    #[tokio::test]
    async fn a_broken_connection_ends_all_waits_and_is_replaced() {
        let mut server = Server::start(&[]);
        let here = House::at(&server.url(), BLOCK).await;
        let queues = names(&["mail"]);
        let (mut first, mut second) = (pin!(here.wait(&["mail"])), pin!(here.wait(&["mail"])));
        select! {
            _ = &mut first => panic!("nobody rang"),
            _ = &mut second => panic!("nobody rang"),
            () = here.until_blocked(1) => {}
        }
        server.kill();
        assert_eq!(tokio::join!(first, second), (Rung::Doubt, Rung::Doubt));
        server.restart();
        // The listener may be in its pause, and doubts once more when it is back.
        let begin = SystemInstant::now();
        loop {
            here.ring("mail", NOW);
            match here.bell.wait(&queues, Duration::from_millis(100), &clock).await {
                Rung::Work => break,
                other => assert!(begin.elapsed() < LONG, "{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_server_that_stays_silent_ends_all_waits() {
        let server = Server::start(&[]);
        let here = House::at(&server.url(), Duration::from_millis(10)).await;
        let mut wait = pin!(here.wait(&["mail"]));
        select! {
            _ = &mut wait => panic!("nobody rang"),
            () = here.until_blocked(1) => {}
        }
        server.freeze();
        assert_eq!(wait.await, Rung::Doubt);
        server.thaw();
    }

    #[tokio::test]
    async fn what_nobody_answered_goes_back_at_the_end() {
        let url = Server::shared().url();
        let (here, there) = (House::at(&url, BLOCK).await, House::at(&url, BLOCK).await);
        let later = clock().after(LONG);
        {
            let mut wait = pin!(here.wait(&["mail"]));
            here.ring("mail", later);
            let taken = async {
                let arrived = || here.bell.shared.hall().all().pop();
                loop {
                    if let Some(Unheard { queue, first: Some(at), .. }) = arrived() {
                        return here.bell.shared.hall().take_in(
                            queue,
                            at,
                            waiters::Kind::First,
                            SystemInstant::now(),
                        );
                    }
                    yield_now().await;
                }
            };
            select! {
                _ = &mut wait => panic!("it is for later"),
                () = taken => {}
            }
        }
        drop(here);
        assert_eq!(there.score("mail").await, Some(later.as_ms()));
    }
}
