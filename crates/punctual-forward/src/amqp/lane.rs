//! A channel in confirm mode, and whoever publishes on it: one at a time, and each told what became of its own message.
//!
//! One publisher per channel is a must: the client numbers a message and queues its frames in two steps, and of two callers one
//! could get the other's confirm. So one future drives all publishes of a channel. Whose message came back is told by
//! [`Verdicts`], since the client does not tell it.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use lapin::{
    BasicProperties, Channel, Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::verdicts::{Verdict, Verdicts};
use crate::target::ANSWER_MAX;

/// Messages that wait to be put on a channel.
const WAITING_MAX: usize = 1_024;
/// Messages on a channel without a confirm. Beyond it another channel is opened: confirms that never come must not pile up.
const PENDING_MAX: usize = 16_384;
/// Returns without the confirms of their messages. Beyond it another channel is opened, likewise.
const LEFT_OVER_MAX: usize = 1_024;
/// How long a lane that takes no more waits for the next confirm; nobody waits longer for one ([`ANSWER_MAX`]).
const LINGER: Duration = ANSWER_MAX;

/// What is published.
pub(super) struct Message {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Arc<[u8]>,
}

/// What became of a message.
pub(super) type Published = Result<Verdict, lapin::Error>;

/// Asks for a message to be published.
struct Order {
    message: Message,
    answer: oneshot::Sender<Published>,
}

/// Where messages for a channel are handed in. Clones publish on the same channel.
#[derive(Clone)]
pub(super) struct Lane {
    orders: mpsc::Sender<Order>,
    channel: Arc<Channel>,
}

impl Lane {
    /// Sets a fresh channel to confirm mode, and publishes on it until all clones are gone.
    pub(super) async fn open(channel: Channel) -> Result<Self, lapin::Error> {
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let (orders, taken) = mpsc::channel(WAITING_MAX);
        let channel = Arc::new(channel);
        tokio::spawn(publish(Arc::clone(&channel), taken));
        Ok(Self { orders, channel })
    }

    /// Whether it takes messages.
    pub(super) fn is_open(&self) -> bool {
        !self.orders.is_closed() && self.channel.status().connected()
    }

    /// Publishes a message; `None`: the lane ended before the broker said anything of it.
    pub(super) async fn publish(&self, message: Message) -> Option<Published> {
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order { message, answer }).await.ok()?;
        answered.await.ok()
    }
}

/// A message on its way, and who asked.
struct Sent {
    id: ShortString,
    answer: oneshot::Sender<Published>,
    confirmed: Result<Confirmation, lapin::Error>,
}

/// Publishes what is handed in, and answers.
async fn publish(channel: Arc<Channel>, mut orders: mpsc::Receiver<Order>) {
    let mut pending = FuturesUnordered::new();
    let mut verdicts = Verdicts::default();
    let mut has_ended = false;
    loop {
        if has_ended {
            orders.close();
            // Whoever asked asks another lane.
            while orders.try_recv().is_ok() {}
        }
        tokio::select! {
            biased;
            Some(step) = pending.next(), if !pending.is_empty() => {
                // Who gave up waiting is not told.
                let tell = |who: oneshot::Sender<Published>, verdict| drop(who.send(Ok(verdict)));
                match step {
                    Some(Sent { id, answer, confirmed: Ok(confirmation) }) => {
                        let (said, took) = read(confirmation);
                        verdicts.see(id, said, took, answer, tell);
                    }
                    Some(Sent { answer, confirmed: Err(error), .. }) => {
                        drop(answer.send(Err(error)));
                        verdicts.end();
                    }
                    None => verdicts.mark(tell),
                }
                if verdicts.wants_mark() {
                    // Futures are seen in the order in which they were woken: this one behind all that are ready by now.
                    pending.push(step_of(Arc::clone(&channel), None));
                }
                has_ended |= LEFT_OVER_MAX < verdicts.left_over();
            }
            order = orders.recv(), if !has_ended && pending.len() < PENDING_MAX => match order {
                Some(order) => {
                    pending.push(step_of(Arc::clone(&channel), Some(order)));
                    // Confirms that are lost stay pending for good.
                    has_ended |= pending.len() == PENDING_MAX;
                }
                None => has_ended = true,
            },
            () = sleep(LINGER), if has_ended && !pending.is_empty() => return,
            else => return,
        }
    }
}

/// Publishes a message, and waits for its confirm; without one it is a mark, which is ready at once.
async fn step_of(channel: Arc<Channel>, order: Option<Order>) -> Option<Sent> {
    let Order { message, answer } = order?;
    let id = message.properties.message_id().clone().unwrap_or_default();
    let confirmed = async {
        let confirm = {
            let Message { exchange, routing_key, properties, body } = message;
            // What is routed to no queue comes back, instead of vanishing.
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            channel.basic_publish(exchange, routing_key, options, &body, properties).await?
        };
        confirm.await
    };
    Some(Sent { id, confirmed: confirmed.await, answer })
}

/// What a confirm says of its message, and the return that it happened to take along.
fn read(confirmation: Confirmation) -> (Verdict, Option<(ShortString, String)>) {
    let said = if confirmation.is_ack() { Verdict::Taken } else { Verdict::Refused };
    let took = confirmation.take_message().map(|back| {
        let id = back.delivery.properties.message_id().clone().unwrap_or_default();
        (id, format!("{} {}", back.reply_code, back.reply_text))
    });
    (said, took)
}
