//! Waiting for work without polling.
//!
//! Each queue has a notification key on the server. It is a sorted set of four members, and of times that processes
//! returned. The score of a notification is the time from which on there is work (0: now). One of the listening
//! processes pops it, and wakes one of its waits:
//!
//! ```text
//! on the server ──(popped by the listener)──► with the waiters ──(its time has come, a wait takes it)──► Work
//!       ▲                                            │
//!       └─────────(no wait here any more)────────────┘
//! ```
//!
//! A wait can be dropped, so a notification is never held by one. It stays with the waiters until it is taken, and
//! taking it ends the wait. Notifications can be lost, because the process that popped one may die. So a second one,
//! the spare, makes another process check a little later. After any event that may have lost a notification, all
//! waits here return to look for work. So the end of a wait only has to cover what no process here can notice: keys
//! that were deleted by hand, or two processes that died with both notifications.
//!
//! A change of the store itself has a notification key of its own, which each listener passes on to the next.
//!
//! A due time wakes two processes, whether it is that of a job or the end of a lease: one at the time, and another
//! one a second later. The queue's row has the time for which two processes wake. Both learn of it by notifications
//! of their own kind, which no notification for now replaces. Or a process that reserved and waits is the first, and
//! only the second is notified. All other processes leave the time to these two, and check by themselves some seconds
//! later, because both may be dead.

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

pub(crate) use self::waiters::{Heard, Hold};
use self::waiters::{Kind, Look, Unheard, Waiters};
use crate::{
    core::time::Timestamp,
    store::{
        is_of_queue,
        notification::{NAMESAKES_MAX, WORKER_NOTIFICATION},
        redis::connection::{
            io_thread::Thread,
            link::{Line, Link},
        },
    },
};
use listener::Listener;

/// How long the server holds the call of an idle listener. Waiting costs one command in this time.
pub(crate) const BLOCK: Duration = Duration::from_mins(1);

/// How much later than a notification its spare is due; the same as in `lua/key_names.lua`.
pub(crate) const SPARE: Duration = Duration::from_secs(1);

/// Why a wait returned. In each case the caller must reserve next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A notification: there may be work.
    Work,
    /// A notification may have been lost.
    Doubt,
    /// The time is over.
    Time,
}

/// The notifications of one store's queues, as received by one process.
#[derive(Debug)]
pub(crate) struct Notifier {
    shared: Arc<Shared>,
    thread: Arc<Thread>,
    closing: CancellationToken,
}

/// State that the waits and the listener share.
#[derive(Debug)]
pub(crate) struct Shared {
    line: Arc<Line>,
    waiters: Mutex<Waiters>,
    /// Notifies the listener that it must listen to other queues, or to none.
    changed: Notify,
    /// Whether the store has another format, so that nothing may be returned to it.
    is_foreign: AtomicBool,
}

impl Shared {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_key(&self) -> Vec<u8> {
        self.line.route().key("changed")
    }

    fn announcement(&self, change: u64) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("ZADD").arg(self.change_key()).arg("GT").arg(change).arg("r");
        cmd
    }

    /// Keys other than queues' are short-lived: their unused notifications expire.
    fn passing<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<Cmd> {
        let expiry = |name| {
            let mut cmd = Cmd::new();
            cmd.arg("PEXPIRE").arg(self.line.route().notification_key(name)).arg(BLOCK.as_millis() as u64);
            cmd
        };
        names.filter(|name| !is_of_queue(name)).map(expiry).collect()
    }

    /// Puts the notifications of a queue on the server. The earliest time of a member counts.
    fn command(&self, notification: &Unheard) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("ZADD").arg(self.line.route().notification_key(&notification.queue)).arg("LT");
        for (kind, at) in notification.notifications() {
            cmd.arg(at.as_ms()).arg(Unheard::member(kind, at));
        }
        cmd
    }

    /// Notifies further processes of a cancel: several may have workers of this name, and only one of them runs the job. The server wakes a
    /// process for each member. They are first notifications, whatever follows the `r`.
    fn further(&self, name: &str) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("ZADD").arg(self.line.route().notification_key(name));
        for n in 2..=NAMESAKES_MAX {
            cmd.arg(0).arg(format!("{}{n}", Kind::First.member()));
        }
        cmd
    }
}

impl Notifier {
    /// Starts to listen on the link's thread, over a connection of its own that opens with the first wait. `block` is
    /// [`BLOCK`], or less in tests.
    pub(crate) fn open(link: &Link, block: Duration) -> Self {
        let thread = Arc::clone(link.thread());
        let (waiters, changed) = (Mutex::default(), Notify::new());
        let is_foreign = AtomicBool::new(false);
        let shared = Arc::new(Shared { line: Arc::clone(link.line()), waiters, changed, is_foreign });
        let closing = thread.closing();
        thread.spawn(Listener::new(Arc::clone(&shared), block, closing.clone()).run());
        Self { shared, thread, closing }
    }

    /// Returns when there may be work in one of the queues: when a notification is there whose time has come. `clock`
    /// is the server's time as far as known here. One notification ends one of several waits for a queue.
    ///
    /// The future can be dropped at any time. A notification that it did not take is there for the next wait, here or
    /// elsewhere.
    pub(crate) async fn wait(
        &self,
        queues: &[String],
        at_most: Duration,
        clock: &(dyn Fn() -> Timestamp + Sync),
    ) -> Woken {
        let end = Instant::now().checked_add(at_most);
        let stay = self.enter(queues);
        loop {
            let now = clock();
            let look = {
                let mut waiters = self.shared.waiters();
                waiters.learn_clock(std::time::Instant::now(), now);
                waiters.look(stay.id, now)
            };
            let until_due = match look {
                Look::Due => return Woken::Work,
                Look::Doubt => return Woken::Doubt,
                Look::Later(at) => at.since(now),
                Look::Nothing => Duration::MAX,
            };
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Woken::Time;
            }
            select! {
                () = stay.notify.notified() => {}
                () = sleep(until_due.min(left)) => {}
            }
        }
    }

    /// Notifies queues at `now` that there is work from this instant on (0 for now), with spares. It returns at once,
    /// and nothing depends on it.
    pub(crate) fn notify(&self, notifications: &[(String, Timestamp)], now: Timestamp) {
        let notification = |(queue, at): &(String, Timestamp)| {
            let spare = (*at).max(now).after(SPARE);
            self.shared.command(&Unheard {
                queue: queue.clone(),
                first: Some(*at),
                spare: Some(spare),
                ..Unheard::default()
            })
        };
        let names = || notifications.iter().map(|(name, _)| name.as_str());
        let further = names()
            .filter(|name| name.starts_with(WORKER_NOTIFICATION))
            .map(|name| self.shared.further(name));
        let own = notifications.iter().map(notification);
        self.send(own.chain(further).chain(self.shared.passing(names())).collect());
    }

    /// Returns what has been received so far.
    pub(crate) fn heard(&self) -> Heard {
        self.shared.waiters().heard()
    }

    /// Notes that a call checked these queues at `now` by the server's clock. `heard` is what had been received when
    /// it was sent. Earlier notifications are answered, and their spares need no check of their own. `is_all`:
    /// nothing is left there now.
    pub(crate) fn answered<'a>(
        &self,
        queues: impl Iterator<Item = &'a str>,
        now: Timestamp,
        before: Heard,
        is_all: bool,
    ) {
        self.shared.waiters().answered(queues, now, before, is_all);
    }

    /// Returns the times for which this process wakes, for a queue.
    pub(crate) fn hold(&self, queue: &str) -> Hold {
        self.shared.waiters().hold(queue, std::time::Instant::now())
    }

    /// Notes that the store wants this process to wake for a queue at `at`. The call had this hold, and `before` is
    /// what had been received when it was sent.
    pub(crate) fn wake_at(&self, queue: &str, at: Timestamp, hold: &Hold, before: Heard) {
        let back = self.shared.waiters().wake_at(queue, at, hold, before, std::time::Instant::now());
        if let Some(notification) = back {
            self.send(vec![self.shared.command(&notification)]);
        }
    }

    /// Notes that the time of a queue is that of a living process; see [`Waiters::looked`].
    pub(crate) fn looked(&self, queue: &str, before: Heard) {
        self.shared.waiters().looked(queue, before);
    }

    /// Notes that other processes wake for a queue, by the answer to a call. `before` is what had been received when
    /// it was sent.
    pub(crate) fn leave_to_others(&self, queue: &str, before: Heard) {
        self.shared.waiters().leave_to_others(queue, before);
    }

    /// Returns the earliest time for which this process wakes by itself, for these queues.
    pub(crate) fn held<'a>(&self, queues: impl Iterator<Item = &'a str>) -> Option<Timestamp> {
        self.shared.waiters().held(queues)
    }

    /// Notes that the store has a newer format: no notifications are returned to it.
    pub(crate) fn leave_alone(&self) {
        self.shared.is_foreign.store(true, Ordering::Relaxed);
        drop(self.shared.waiters().all());
    }

    /// Forgets all notifications received here. None is returned to the server.
    #[cfg(feature = "testing")]
    pub(crate) fn forget(&self) {
        drop(self.shared.waiters().all());
    }

    /// Ends the waits of all processes, one after another, because the store has changed. `change` must be above
    /// those before.
    pub(crate) fn announce(&self, change: u64) {
        self.send(vec![self.shared.announcement(change)]);
    }

    fn send(&self, cmds: Vec<Cmd>) {
        if cmds.is_empty() {
            // The client fails if it has nothing to send, as if its connection were broken.
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.thread.spawn(async move {
            if let Err(e) = shared.line.commands(&cmds).await {
                tracing::debug!(error = &e as &dyn std::error::Error, "could not send a notification");
            }
        });
    }

    fn enter(&self, queues: &[String]) -> Stay<'_> {
        let notify = Arc::new(Notify::new());
        let entered = self.shared.waiters().enter(queues, &notify);
        if entered.is_news {
            self.shared.changed.notify_one();
        }
        Stay { shared: &self.shared, id: entered.id, notify }
    }
}

impl Drop for Notifier {
    /// Returns unanswered notifications to the server.
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// A wait among the waiters.
struct Stay<'a> {
    shared: &'a Shared,
    id: u64,
    notify: Arc<Notify>,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        // The system's time, because a runtime's own can stand still.
        if self.shared.waiters().leave(self.id, std::time::Instant::now()) {
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

    /// The connections of a store.
    struct House {
        notifier: Notifier,
        link: Link,
    }

    impl House {
        async fn at(url: &str, block: Duration) -> Self {
            let (thread, address) = (Arc::new(Thread::start().unwrap()), Address::parse(url).unwrap());
            let link = Link::new(&thread, &address, 0).unwrap();
            link.enter().await.unwrap();
            Self { notifier: Notifier::open(&link, block), link }
        }

        async fn wait(&self, queues: &[&str]) -> Woken {
            self.notifier.wait(&names(queues), LONG, &clock).await
        }

        fn notify(&self, queue: &str, at: Timestamp) {
            let notification = Unheard { queue: queue.to_owned(), first: Some(at), ..Unheard::default() };
            self.notifier.send(vec![self.notifier.shared.command(&notification)]);
        }

        /// Waits until this many connections wait for a notification.
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

        /// Returns the notification on the server.
        async fn score(&self, queue: &str) -> Option<u64> {
            let mut cmd = Cmd::new();
            cmd.arg("ZSCORE").arg(self.notifier.shared.line.route().notification_key(queue)).arg("r");
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
        let notification = async {
            yield_now().await;
            there.notify("mail\0{1}", NOW);
        };
        let (woken, ()) = tokio::join!(here.wait(&["bulk", "mail\0{1}"]), notification);
        assert_eq!(woken, Woken::Work);
        there.notify("bulk", NOW);
        assert_eq!(here.wait(&["bulk"]).await, Woken::Work);
        assert_eq!(here.notifier.wait(&names(&["bulk"]), Duration::ZERO, &clock).await, Woken::Time);
    }

    /// Of two times on the server, neither replaces the other: it is not known here which of them is in the queue's
    /// row.
    #[tokio::test]
    async fn a_time_that_comes_back_stands_beside_one_that_a_script_left() {
        let here = House::at(&Server::shared().url(), BLOCK).await;
        let key = here.notifier.shared.line.route().notification_key("times");
        let (mut left, mut count) = (Cmd::new(), Cmd::new());
        left.arg("ZADD").arg(&key).arg(5).arg("t");
        count.arg("ZCARD").arg(&key);
        here.link.command(left).await.unwrap();
        let at = Timestamp::saturating_from_ms(7);
        let notification = Unheard { queue: "times".to_owned(), times: [at].into(), ..Unheard::default() };
        here.link.command(here.notifier.shared.command(&notification)).await.unwrap();
        assert_eq!(here.link.command(count).await.unwrap(), Value::Int(2));
    }

    #[tokio::test]
    async fn a_ring_that_dies_with_its_process_has_a_spare() {
        let server = Server::start(&[]);
        let url = server.url();
        let (dead, here) = (House::at(&url, BLOCK).await, House::at(&url, BLOCK).await);
        let mut eaten = pin!(dead.wait(&["mail"]));
        select! {
            _ = &mut eaten => panic!("nobody notified"),
            () = here.until_blocked(1) => {}
        }
        let mut wait = pin!(here.wait(&["mail"]));
        select! {
            _ = &mut wait => panic!("nobody notified"),
            () = here.until_blocked(2) => {}
        }
        // The oldest waiter gets the notification and never takes it.
        let woken = clock();
        here.notifier.notify(&[("mail".to_owned(), NOW)], woken);
        assert_eq!(wait.await, Woken::Work);
        assert!(woken.after(SPARE) <= clock());
        assert_eq!(eaten.await, Woken::Work);
    }

    #[tokio::test]
    async fn a_ring_for_later_ends_a_wait_then_and_not_before() {
        let here = House::at(&Server::shared().url(), BLOCK).await;
        let due = clock().after(Duration::from_millis(60));
        here.notify("mail", due.after(LONG));
        here.notify("mail", due);
        here.notify("mail", due.after(LONG));
        assert_eq!(here.wait(&["mail"]).await, Woken::Work);
        assert!(due <= clock());
    }

    #[tokio::test]
    async fn one_ring_ends_one_of_two_waits() {
        let here = House::at(&Server::shared().url(), BLOCK).await;
        let queues = ["mail"];
        let (mut first, mut second) = (pin!(here.wait(&queues)), pin!(here.wait(&queues)));
        here.notify("mail", NOW);
        let first_is_over = select! {
            woken = &mut first => { assert_eq!(woken, Woken::Work); true }
            woken = &mut second => { assert_eq!(woken, Woken::Work); false }
        };
        let other = if first_is_over { second } else { first };
        let mut other = pin!(other);
        assert!(timeout(Duration::from_millis(20), &mut other).await.is_err());
        here.notify("mail", NOW);
        assert_eq!(other.await, Woken::Work);
    }

    #[tokio::test]
    async fn a_wait_that_is_dropped_loses_no_ring() {
        let here = House::at(&Server::shared().url(), BLOCK).await;
        for n in 0..150 {
            here.notify("mail", NOW);
            // From before the call is blocked to after the grace period.
            let early = timeout(Duration::from_micros(n % 50 * 60), here.wait(&["mail"])).await;
            if early.is_err() {
                assert_eq!(here.wait(&["mail"]).await, Woken::Work, "{n}");
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
            // It gets the notification, and then its wait is dropped.
            let mut wait = pin!(here.wait(&["mail"]));
            select! {
                _ = &mut wait => panic!("nobody notified"),
                () = here.until_blocked(1) => {}
            }
            here.notify("mail", later);
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
        // Nothing blocks any more, and the notification is back with its time.
        here.until_blocked(0).await;
        let begin = SystemInstant::now();
        while here.score("mail").await.is_none() {
            assert!(begin.elapsed() < LONG);
            yield_now().await;
        }
        assert_eq!(here.score("mail").await, Some(later.as_ms()));
        there.notify("mail", NOW);
        assert_eq!(there.wait(&["mail"]).await, Woken::Work);
    }

    #[tokio::test]
    async fn a_ring_that_died_with_its_caller_is_doubted_when_the_block_ends() {
        let here = House::at(&Server::shared().url(), Duration::from_millis(200)).await;
        let queues = ["mail"];
        let mut wait = pin!(here.wait(&queues));
        let still = timeout(Duration::from_millis(700), &mut wait).await;
        assert!(still.is_err(), "nothing notified, and nobody left a notification: {still:?}");
        let mut left = Cmd::new();
        left.arg("HSET").arg(here.notifier.shared.line.route().key("s")).arg("left").arg(1);
        here.link.command(left).await.unwrap();
        assert_eq!(wait.await, Woken::Doubt);
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
        here.notifier.notify(&[], NOW);
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
            _ = &mut mail => panic!("nobody notified"),
            () = here.until_blocked(1) => {}
        }
        here.notify("bulk", NOW);
        let bulk = here.wait(&["bulk"]);
        select! {
            _ = &mut mail => panic!("nobody notified for it"),
            woken = bulk => assert_eq!(woken, Woken::Work),
        }
        here.notify("mail", NOW);
        assert_eq!(mail.await, Woken::Work);
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
            // Another wait for the same queues needs nothing from the server.
            let woken = here.notifier.wait(&names(&["bulk"]), Duration::from_millis(700), &clock).await;
            assert_eq!(woken, Woken::Time);
            here.info("commandstats").await
        };
        let stats = select! {
            _ = &mut wait => panic!("nobody notified"),
            stats = look => stats,
        };
        let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let mut names = BTreeSet::new();
        for (name, rest) in calls {
            if ["bzpopmin", "hget"].contains(&name) {
                let calls: u32 = rest.split(',').next().unwrap().parse().unwrap();
                // The server ends a blocked call up to 100 ms late.
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
            _ = &mut first => panic!("nobody notified"),
            _ = &mut second => panic!("nobody notified"),
            () = here.until_blocked(1) => {}
        }
        server.kill();
        assert_eq!(tokio::join!(first, second), (Woken::Doubt, Woken::Doubt));
        server.restart();
        // The listener can be in its pause, and doubts once more when it is back.
        let begin = SystemInstant::now();
        loop {
            here.notify("mail", NOW);
            match here.notifier.wait(&queues, Duration::from_millis(100), &clock).await {
                Woken::Work => break,
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
            _ = &mut wait => panic!("nobody notified"),
            () = here.until_blocked(1) => {}
        }
        server.freeze();
        assert_eq!(wait.await, Woken::Doubt);
        server.thaw();
    }

    #[tokio::test]
    async fn what_nobody_answered_goes_back_at_the_end() {
        let url = Server::shared().url();
        let (here, there) = (House::at(&url, BLOCK).await, House::at(&url, BLOCK).await);
        let later = clock().after(LONG);
        {
            let mut wait = pin!(here.wait(&["mail"]));
            here.notify("mail", later);
            let taken = async {
                let arrived = || here.notifier.shared.waiters().all().pop();
                loop {
                    if let Some(Unheard { queue, first: Some(at), .. }) = arrived() {
                        return here.notifier.shared.waiters().take_in(
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
