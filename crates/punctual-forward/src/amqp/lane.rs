//! A channel in confirm mode and its publishers. Each publisher gets the verdict on its own message.
//!
//! A channel has exactly one publishing future. The client numbers a message and queues its frames in two steps, so
//! two concurrent callers could get each other's confirms. [`Verdicts`] finds out which message was returned, because
//! the client does not say.

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

/// Messages that wait to be published on a channel.
const WAITING_MAX: usize = 1_024;
/// Messages on a channel without a confirm. Beyond it another channel is opened, so that confirms that never arrive
/// do not pile up.
const PENDING_MAX: usize = 16_384;
/// Returns without the confirms of their messages. Beyond it another channel is opened.
const LEFT_OVER_MAX: usize = 1_024;
/// How long a lane that accepts no more waits for its last confirms. No caller waits longer ([`ANSWER_MAX`]).
const LINGER: Duration = ANSWER_MAX;

/// A message to publish.
pub(super) struct Message {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Arc<[u8]>,
}

/// The verdict on a message.
pub(super) type Published = Result<Verdict, lapin::Error>;

/// A request to publish a message.
struct Order {
    message: Message,
    answer: oneshot::Sender<Published>,
}

/// A handle that publishes on one channel. Clones share the channel.
#[derive(Clone)]
pub(super) struct Lane {
    orders: mpsc::Sender<Order>,
    channel: Arc<Channel>,
}

impl Lane {
    /// Sets a new channel to confirm mode, and publishes on it until all clones are dropped.
    pub(super) async fn open(channel: Channel) -> Result<Self, lapin::Error> {
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let (orders, taken) = mpsc::channel(WAITING_MAX);
        let channel = Arc::new(channel);
        tokio::spawn(publish(Arc::clone(&channel), taken));
        Ok(Self { orders, channel })
    }

    /// Returns whether it accepts messages.
    pub(super) fn is_open(&self) -> bool {
        !self.orders.is_closed() && self.channel.status().connected()
    }

    /// Publishes a message; returns `None` if the lane ended before the broker answered.
    pub(super) async fn publish(&self, message: Message) -> Option<Published> {
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order { message, answer }).await.ok()?;
        answered.await.ok()
    }
}

/// A message in flight, and its caller.
struct Sent {
    id: ShortString,
    answer: oneshot::Sender<Published>,
    confirmed: Result<Confirmation, lapin::Error>,
}

/// Publishes messages and returns their verdicts.
async fn publish(channel: Arc<Channel>, mut orders: mpsc::Receiver<Order>) {
    let mut pending = FuturesUnordered::new();
    let mut verdicts = Verdicts::default();
    let mut has_ended = false;
    loop {
        if has_ended {
            orders.close();
            // Their callers use another lane.
            while orders.try_recv().is_ok() {}
        }
        tokio::select! {
            biased;
            Some(step) = pending.next(), if !pending.is_empty() => {
                // A caller that gave up waiting gets no verdict.
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
                    // Futures are polled in the order in which they were woken, so this one comes after all that are
                    // ready now.
                    pending.push(step_of(Arc::clone(&channel), None));
                }
                has_ended |= LEFT_OVER_MAX < verdicts.left_over();
            }
            order = orders.recv(), if !has_ended && pending.len() < PENDING_MAX => match order {
                Some(order) => {
                    pending.push(step_of(Arc::clone(&channel), Some(order)));
                    // Lost confirms stay pending for ever.
                    has_ended |= pending.len() == PENDING_MAX;
                }
                None => has_ended = true,
            },
            () = sleep(LINGER), if has_ended && !pending.is_empty() => return,
            else => return,
        }
    }
}

/// Publishes a message and waits for its confirm. Without a message it is a mark, which is ready at once.
async fn step_of(channel: Arc<Channel>, order: Option<Order>) -> Option<Sent> {
    let Order { message, answer } = order?;
    let id = message.properties.message_id().clone().unwrap_or_default();
    let confirmed = async {
        let confirm = {
            let Message { exchange, routing_key, properties, body } = message;
            // A message that is routed to no queue is returned instead of dropped.
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            channel.basic_publish(exchange, routing_key, options, &body, properties).await?
        };
        confirm.await
    };
    Some(Sent { id, confirmed: confirmed.await, answer })
}

/// Returns what a confirm says about its message, and the return that it took along.
fn read(confirmation: Confirmation) -> (Verdict, Option<(ShortString, String)>) {
    let said = if confirmation.is_ack() { Verdict::Taken } else { Verdict::Refused };
    let took = confirmation.take_message().map(|back| {
        let id = back.delivery.properties.message_id().clone().unwrap_or_default();
        (id, format!("{} {}", back.reply_code, back.reply_text))
    });
    (said, took)
}
