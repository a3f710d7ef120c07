//! A channel in confirm mode, and whoever publishes on it: one at a time, and each told what became of its own message.
//!
//! One publisher per channel is a must, twice. The client numbers a message and queues its frames in two steps: of two callers
//! one could get the other's confirm. And it hands a returned message to whichever confirm comes next, or, where the broker
//! confirms many with one frame, to any of those. So a lane looks at all confirms that are there before it answers one, and
//! tells whose return it is by the id of the message. A return always comes before the confirm of its message, so that it
//! was handed to a confirm that is there by then.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use lapin::{
    BasicProperties, Channel, Confirmation,
    message::BasicReturnMessage,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::ANSWER_MAX;

/// Messages that wait to be put on a channel.
const WAITING_MAX: usize = 1_024;
/// Messages on a channel without a confirm. Beyond it another channel is opened: confirms that never come must not pile up.
const PENDING_MAX: usize = 16_384;
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

/// What the broker says of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every queue that it was routed to has it.
    Taken,
    /// It can't say that it has it.
    Refused,
    /// It was routed to no queue.
    Returned(String),
}

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
    id: Option<ShortString>,
    answer: oneshot::Sender<Published>,
    confirmed: Result<Confirmation, lapin::Error>,
}

/// Publishes what is handed in, and answers.
async fn publish(channel: Arc<Channel>, mut orders: mpsc::Receiver<Order>) {
    let mut pending = FuturesUnordered::new();
    let mut returned = Returned::default();
    let mut has_ended = false;
    loop {
        tokio::select! {
            biased;
            Some(sent) = pending.next(), if !pending.is_empty() => {
                let mut sent: Vec<Sent> = vec![sent];
                while let Some(Some(more)) = pending.next().now_or_never() {
                    sent.push(more);
                }
                note(&mut returned, &mut sent);
                if !returned.0.is_empty() {
                    // Another thread may be in the middle of a frame that confirms many, of which one that is still to come
                    // carries what another one is blamed for. This waits for its lock, and so for the end of the frame.
                    let _ = channel.wait_for_confirms().now_or_never();
                    while let Some(Some(more)) = pending.next().now_or_never() {
                        sent.push(more);
                    }
                    note(&mut returned, &mut sent);
                }
                for Sent { id, answer, confirmed } in sent {
                    // Who gave up waiting is not told.
                    let _ = answer.send(confirmed.map(|said| returned.verdict(id.as_ref(), &said)));
                }
            }
            order = orders.recv(), if !has_ended && pending.len() < PENDING_MAX => match order {
                Some(Order { message, answer }) => {
                    pending.push(send(Arc::clone(&channel), message, answer));
                    // Confirms that are lost stay pending for good.
                    if pending.len() == PENDING_MAX {
                        orders.close();
                    }
                }
                None => has_ended = true,
            },
            () = sleep(LINGER), if has_ended && !pending.is_empty() => return,
            else => return,
        }
    }
}

/// Takes the messages that came back out of the confirms that carry them.
fn note(returned: &mut Returned, sent: &mut [Sent]) {
    for one in sent {
        returned.note(&mut one.confirmed);
    }
}

async fn send(channel: Arc<Channel>, message: Message, answer: oneshot::Sender<Published>) -> Sent {
    let id = message.properties.message_id().clone();
    let confirmed = async {
        let Message { exchange, routing_key, properties, body } = message;
        // What is routed to no queue comes back, instead of vanishing.
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        channel.basic_publish(exchange, routing_key, options, &body, properties).await?.await
    };
    Sent { id, confirmed: confirmed.await, answer }
}

/// Messages that came back, whose confirms were not seen yet.
#[derive(Default)]
struct Returned(Vec<(Option<ShortString>, String)>);

impl Returned {
    /// Takes a message that came back out of the confirm that happened to carry it.
    fn note(&mut self, confirmed: &mut Result<Confirmation, lapin::Error>) {
        if let Ok(Confirmation::Ack(back) | Confirmation::Nack(back)) = confirmed
            && let Some(BasicReturnMessage { delivery, reply_code, reply_text, .. }) = back.take()
        {
            let id = delivery.properties.message_id().clone();
            self.0.push((id, format!("{reply_code} {reply_text}")));
        }
    }

    /// What is said of a message, now that all confirms that are there were looked at.
    fn verdict(&mut self, id: Option<&ShortString>, said: &Confirmation) -> Verdict {
        if let Some(at) = self.0.iter().position(|(back, _)| back.as_ref() == id) {
            return Verdict::Returned(self.0.swap_remove(at).1);
        }
        if said.is_ack() { Verdict::Taken } else { Verdict::Refused }
    }
}
