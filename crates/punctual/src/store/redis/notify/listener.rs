//! Listens to the notification keys of all queues for which this process waits, over a connection of its own.
//!
//! ```text
//! no waits ──► blocked call for the keys ──(a notification, or the time is over)──► …
//!                     │ other queues, or none: the listener notifies a key of its own, which it always hears,
//!                     │ so that no notification can be popped for a call that is given up
//!                     └─(broken, silent)──► doubt, pause, new connection, doubt again
//! ```

use std::{
    collections::BTreeSet,
    future::pending,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant as SystemInstant},
};

use redis::{Cmd, Pipeline, Value};
use tokio::{
    select,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::{
    core::{error::Result, time::Timestamp},
    store::redis::{
        connection::{Connection, fault, link::pause, node::Node, redirect::Detour},
        notify::waiters::{Kind, Unheard},
        scripts::{COMMON_KEYS, STATE},
    },
};

/// How much later than its timeout the server can end a blocked call; it checks ten times a second.
const SLACK: Duration = Duration::from_secs(1);
/// How long a blocked call can last after the listener's own key was notified.
const WAKE_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Listener {
    shared: Arc<Shared>,
    block: Duration,
    closing: CancellationToken,
    /// The notification key of this listener alone.
    own_key: Vec<u8>,
    /// The key that notifies all listeners, one after another, of a change of the store. Its score is the number of
    /// the change.
    change_key: Vec<u8>,
    /// The last change of which this listener notified the next one.
    passed_on: u64,
    connection: Option<(Node, Connection)>,
    /// How often listening failed in a row.
    failures: u32,
    /// When a script last left notifications to its caller, as last read from the server.
    left: Value,
    /// The number of blocked calls so far. Each starts with another queue, because the server checks keys in the
    /// order in which they are named.
    turn: usize,
}

impl Listener {
    pub(crate) fn new(shared: Arc<Shared>, block: Duration, closing: CancellationToken) -> Self {
        let own_key = shared.line.route().key(&format!("wake:{:016x}", fastrand::u64(..)));
        let change_key = shared.change_key();
        Self {
            shared,
            block,
            closing,
            own_key,
            change_key,
            passed_on: 0,
            connection: None,
            failures: 0,
            left: Value::Nil,
            turn: 0,
        }
    }

    /// Listens until the notifier is closed.
    pub(crate) async fn run(mut self) {
        while !self.closing.is_cancelled() {
            self.hand_back().await;
            let queues = self.shared.waiters().waited_for();
            if queues.is_empty() {
                select! {
                    () = self.closing.cancelled() => {}
                    () = self.changed() => {}
                }
                continue;
            }
            if let Err(e) = self.listen(queues).await {
                self.connection = None;
                self.failures += 1;
                if self.failures == 1 {
                    tracing::warn!(
                        error = &e as &dyn std::error::Error,
                        "notifications stopped; trying again"
                    );
                }
                self.shared.waiters().doubt();
                select! {
                    () = self.closing.cancelled() => {}
                    () = sleep(pause(self.failures, fastrand::f64())) => {}
                }
            }
        }
        let left = self.shared.waiters().all();
        self.put_back(left).await;
    }

    /// Returns when other queues may be wanted, or a notification may have to be returned.
    async fn changed(&self) {
        let next = self.shared.waiters().next_change();
        let grace = async {
            match next {
                Some(at) => sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        select! {
            () = self.shared.changed.notified() => {}
            () = grace => {}
        }
    }

    /// Receives one notification, or none for the time of a blocked call, or is woken because the queues changed.
    async fn listen(&mut self, queues: BTreeSet<String>) -> Result<()> {
        let connection = self.connection.take().filter(|(_, connection)| connection.is_open());
        let (node, connection) = if let Some(connection) = connection {
            connection
        } else {
            let connection = self.shared.line.route().connect().await.map_err(fault::unreachable)?;
            if 0 < self.failures {
                // Earlier notifications may have been lost with the server's memory.
                self.shared.waiters().doubt();
            }
            self.left = connection.1.send(&self.look()).await.map_err(|e| fault::lost("HGET", e))?;
            connection
        };
        self.turn = self.turn.wrapping_add(1);
        let cmd = self.block_on(&queues);
        self.shared.waiters().hear(queues.clone());
        let answer = self.answer(&node, &connection, &cmd, &queues).await;
        self.shared.waiters().hear(BTreeSet::new());
        let mut answers = answer?.into_iter();
        let (answer, left) = (answers.next().unwrap_or(Value::Nil), answers.next().unwrap_or(Value::Nil));
        if answer == Value::Nil && left != self.left && !matches!(left, Value::ServerError(_)) {
            // No notification for a minute: a process that should have sent one may be dead.
            self.left = left;
            self.shared.waiters().doubt();
        }
        self.take_in(answer, &node).await?;
        (self.connection, self.failures) = (Some((node, connection)), 0);
        Ok(())
    }

    /// Asks when a script last left notifications to its caller.
    fn look(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("HGET").arg(self.shared.line.route().key(COMMON_KEYS[STATE])).arg("left");
        cmd
    }

    fn block_on(&self, queues: &BTreeSet<String>) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("BZPOPMIN").arg(&self.own_key).arg(&self.change_key);
        for queue in queues.iter().cycle().skip(self.turn % queues.len()).take(queues.len()) {
            cmd.arg(self.shared.line.route().notification_key(queue));
        }
        cmd.arg(self.block.as_secs_f64());
        cmd
    }

    /// Waits for the end of a blocked call, and ends it when other queues are wanted.
    async fn answer(
        &self,
        node: &Node,
        connection: &Connection,
        cmd: &Cmd,
        queues: &BTreeSet<String>,
    ) -> Result<Vec<Value>> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(cmd.clone()).add_command(self.look());
        let mut answer = pin!(connection.send_all(&pipeline));
        let mut deadline = Instant::now() + self.block + SLACK;
        let mut is_woken = false;
        loop {
            select! {
                biased;
                answer = &mut answer => return answer.map_err(|e| fault::lost("BZPOPMIN", e)),
                () = sleep_until(deadline) => return Err(fault::silent("BZPOPMIN")),
                // No notifications arrive from this server any more, and one that was cut off would never say so.
                () = self.shared.line.moved_from(node) => return Err(fault::restless("BZPOPMIN")),
                () = self.closing.cancelled(), if !is_woken => {}
                () = self.changed() => {}
            }
            self.hand_back().await;
            let suits = self.shared.waiters().suits(queues, SystemInstant::now());
            if !is_woken && (self.closing.is_cancelled() || !suits) {
                self.wake().await?;
                is_woken = true;
                deadline = deadline.min(Instant::now() + WAKE_MAX);
            }
        }
    }

    /// Ends the blocked call in progress, or the next one if a notification has just ended it.
    async fn wake(&self) -> Result<()> {
        let (mut notification, mut expire) = (Cmd::new(), Cmd::new());
        notification.arg("ZADD").arg(&self.own_key).arg(0).arg("r");
        // No other process would ever remove it.
        let ms = (2 * (self.block + SLACK)).as_millis() as u64;
        expire.arg("PEXPIRE").arg(&self.own_key).arg(ms);
        self.shared.line.commands(&[notification, expire]).await
    }

    /// Handles the result of a blocked call.
    async fn take_in(&mut self, answer: Value, node: &Node) -> Result<()> {
        let line = &self.shared.line;
        if let Some(Detour::Moved(place)) = Detour::of(&answer, line.address().topology())
            && let Some(node) = node.named_by(&place)
        {
            line.route().learn(node);
        }
        let (key, notification, score) = match answer {
            Value::Nil => return Ok(()),
            Value::ServerError(refusal) => return Err(fault::refused("BZPOPMIN", &refusal)),
            Value::Array(parts) => match <[Value; 3]>::try_from(parts) {
                Ok([Value::BulkString(key), Value::BulkString(notification), Value::BulkString(score)]) => {
                    (key, notification, score)
                }
                _ => return Err(fault::odd("BZPOPMIN")),
            },
            _ => return Err(fault::odd("BZPOPMIN")),
        };
        if key == self.own_key {
            return Ok(());
        }
        let at = str::from_utf8(&score).ok().and_then(|score| score.parse::<f64>().ok());
        if key == self.change_key {
            return self.pass_on(at.unwrap_or_default() as u64).await;
        }
        let queue = key.strip_prefix(self.shared.line.route().notification_key("").as_slice());
        let queue = queue.and_then(|queue| String::from_utf8(queue.to_vec()).ok());
        let (Some(queue), Some(at)) = (queue, at) else { return Err(fault::odd("BZPOPMIN")) };
        // A score below 0 or an invalid one is due.
        let at = Timestamp::saturating_from_ms(at as u64);
        let is_of = |kind: &Kind| notification.starts_with(kind.member().as_bytes());
        let kind = Kind::ALL.into_iter().find(is_of).unwrap_or(Kind::First);
        let now = SystemInstant::now();
        if kind == Kind::TimeSpare && self.shared.waiters().gives_back(&queue, at, now) {
            let notification = Unheard { queue, time_spares: [at].into(), ..Unheard::default() };
            return self.shared.line.commands(&[self.shared.command(&notification)]).await;
        }
        self.shared.waiters().take_in(queue, at, kind, now);
        Ok(())
    }

    /// Makes all waits check, and notifies the next listener: once for each change.
    async fn pass_on(&mut self, change: u64) -> Result<()> {
        self.shared.waiters().doubt();
        if change <= self.passed_on {
            return Ok(());
        }
        self.passed_on = change;
        self.shared.line.commands(&[self.shared.announcement(change)]).await
    }

    /// Returns notifications that are not answered here to other processes.
    async fn hand_back(&self) {
        let unheard = self.shared.waiters().unheard(SystemInstant::now());
        self.put_back(unheard).await;
    }

    /// Each returns as what it was. A spare that returned as a first notification would need an answer.
    async fn put_back(&self, notifications: Vec<Unheard>) {
        if notifications.is_empty() || self.shared.is_foreign.load(Ordering::Relaxed) {
            return;
        }
        let names = notifications.iter().map(|notification| notification.queue.as_str());
        let cmds: Vec<Cmd> = notifications
            .iter()
            .map(|notification| self.shared.command(notification))
            .chain(self.shared.passing(names))
            .collect();
        if let Err(e) = self.shared.line.commands(&cmds).await {
            tracing::debug!(
                error = &e as &dyn std::error::Error,
                "could not put notifications back; trying again"
            );
            let (mut waiters, now) = (self.shared.waiters(), SystemInstant::now());
            for notification in notifications {
                for (kind, at) in notification.notifications() {
                    waiters.take_in(notification.queue.clone(), at, kind, now);
                }
            }
        }
    }
}
