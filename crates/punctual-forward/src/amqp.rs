//! RabbitMQ, over AMQP 0-9-1 with publisher confirms.
//!
//! A job is forwarded when the broker has confirmed it and has not returned it. Every queue to which it was routed
//! then has it, a durable one on disk. There is one connection, one channel, and as many jobs in flight as the worker
//! has slots.
//!
//! The broker closes the channel on a message that it cannot accept: an exchange that does not exist, or a body
//! beyond its `max_message_size`. The confirms of all other messages in flight are then lost, and it is unknown which
//! message caused it. So each of them is published once more on a channel of its own.

mod lane;
mod link;
mod verdicts;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lapin::{
    BasicProperties,
    options::{ExchangeDeclareOptions, QueueDeclareOptions},
    protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError},
    types::{AMQPValue, FieldTable, LongString, ShortString},
};
use punctual::{Error, ErrorKind, JobRecord, Result};
use tokio::time::timeout;
use url::Url;

use self::{
    lane::{Lane, Message, Published},
    link::Link,
    verdicts::Verdict,
};
use crate::{
    fields,
    sink::{BoxFuture, Refusal, Sink},
    target::Options,
    template::Template,
    tls::Tls,
};

/// How often the wait for an answer checks whether the broker has blocked publishing.
const LOOKS: u32 = 10;
/// Headers that the broker interprets: they name further routing keys.
const ORDERS: [&str; 2] = ["CC", "BCC"];
/// Messages survive a restart of the broker, in durable queues.
const PERSISTENT: u8 = 2;

/// A broker, and the exchange and routing key of messages.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    uri: String,
    exchange: Template,
    routing_key: Template,
    answer: Duration,
}

impl Address {
    /// Parses an address that was split into its URL and options.
    pub(crate) fn parse(mut url: Url, options: &mut Options) -> Result<Self> {
        if url.host_str().is_none_or(str::is_empty) {
            return Err(Error::invalid("the address names no broker")
                .with_hint("write amqp://HOST/?routing_key=QUEUE"));
        }
        let (exchange, key) = (options.take("exchange"), options.take("routing_key"));
        if exchange.as_deref().unwrap_or_default().is_empty() && key.as_deref().unwrap_or_default().is_empty()
        {
            return Err(Error::invalid("the address names neither an exchange nor a routing key")
                .with_hint("add ?exchange=E&routing_key=K, or ?routing_key=QUEUE"));
        }
        let exchange = Template::parse(&exchange.unwrap_or_default())?;
        let routing_key = Template::parse(&key.unwrap_or_default())?;
        let answer = options.answer()?;
        // Without a path the virtual host would have an empty name, and no broker has such a host by default.
        if url.path().is_empty() || url.path() == "/" {
            url.set_path("/%2f");
        }
        Ok(Self { uri: url.into(), exchange, routing_key, answer })
    }
}

impl Address {
    /// Returns whether the connection is encrypted.
    pub(crate) fn is_tls(&self) -> bool {
        self.uri.starts_with("amqps:")
    }
}

/// Publishes jobs to a broker.
pub(crate) struct Amqp {
    address: Address,
    link: Link,
}

impl Amqp {
    pub(crate) fn new(address: Address, tls: Tls) -> Self {
        Self { link: Link::new(address.uri.clone(), tls), address }
    }

    /// Makes the message of a job.
    fn message(&self, job: &JobRecord, id: &str) -> std::result::Result<Message, Refusal> {
        let short = |what: &str, text: String| {
            ShortString::try_new(text)
                .map_err(|_| Refusal::Never(format!("its {what} is longer than 255 bytes")))
        };
        let fill = |what, template: &Template| short(what, template.fill(job).map_err(Refusal::Never)?);
        let mut headers = FieldTable::default();
        for (name, value) in fields::of(job).into_iter().filter(|(name, _)| !ORDERS.contains(&name.as_str()))
        {
            headers.insert(short("header's name", name)?, AMQPValue::LongString(LongString::from(value)));
        }
        let properties = BasicProperties::default()
            .with_message_id(short("id", id.to_owned())?)
            .with_type(short("kind", job.kind.clone())?)
            .with_content_type(short("content type", job.payload.content_type.to_string())?)
            .with_app_id("punctual".into())
            .with_timestamp(job.run_at.as_ms() / 1_000)
            .with_delivery_mode(PERSISTENT)
            .with_headers(headers);
        Ok(Message {
            exchange: fill("exchange", &self.address.exchange)?,
            routing_key: fill("routing key", &self.address.routing_key)?,
            properties,
            body: Arc::from(job.payload.bytes.as_slice()),
        })
    }

    async fn publish(&self, job: &JobRecord, id: &str) -> std::result::Result<(), Refusal> {
        let message = self.message(job, id)?;
        let lane = self.link.lane().await?;
        match self.answered(&lane, message, job.timeout / 2).await? {
            Err(error) if own_fault(&error).is_some() => self.publish_alone(job, id).await,
            said => verdict(said),
        }
    }

    /// Publishes a job on a channel of its own, so that a closed channel is its own fault.
    async fn publish_alone(&self, job: &JobRecord, id: &str) -> std::result::Result<(), Refusal> {
        let message = self.message(job, id)?;
        let (lane, _permit) = self.link.alone().await?;
        verdict(self.answered(&lane, message, job.timeout / 2).await?)
    }

    /// Waits for the broker's answer, for a limited time.
    async fn answered(
        &self,
        lane: &Lane,
        message: Message,
        at_most: Duration,
    ) -> std::result::Result<Published, Refusal> {
        let (begin, answer) = (Instant::now(), self.address.answer.min(at_most));
        let mut published = std::pin::pin!(lane.publish(message));
        let mut left = LOOKS;
        loop {
            match timeout(answer / LOOKS, &mut published).await {
                Ok(Some(said)) => return Ok(said),
                Ok(None) => return Err(Refusal::Away("the channel was closed".to_owned())),
                Err(_) if self.link.is_blocked().await => {
                    if at_most <= begin.elapsed() {
                        return Err(Refusal::Away(link::BLOCKED.to_owned()));
                    }
                    // The time starts anew when the broker unblocks.
                    left = LOOKS;
                }
                Err(_) if 1 < left => left -= 1,
                Err(_) => {
                    return Err(Refusal::Away(format!("the broker sent no confirm within {answer:?}")));
                }
            }
        }
    }

    async fn look(&self) -> Result<()> {
        let channel = self.link.channel().await.map_err(refused_at_start)?;
        let (exchange, key) = (self.address.exchange.fixed(), self.address.routing_key.fixed());
        let asked = match (exchange, key) {
            (Some(""), Some(queue)) => {
                let queue = ShortString::try_new(queue).map_err(too_long)?;
                let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
                link::within(channel.queue_declare(queue, options, FieldTable::default())).await.map(drop)
            }
            (Some(exchange), _) if !exchange.is_empty() => {
                let exchange = ShortString::try_new(exchange).map_err(too_long)?;
                let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
                let kind = lapin::ExchangeKind::default();
                link::within(channel.exchange_declare(exchange, kind, options, FieldTable::default())).await
            }
            _ => Ok(()),
        };
        asked.map_err(refused_at_start)?;
        // It would close by itself when dropped; an explicit close is no fault to the broker.
        let _ = link::within(channel.close(200, "".into())).await;
        Ok(())
    }
}

impl Sink for Amqp {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.look())
    }

    fn send<'a>(
        &'a self,
        job: &'a JobRecord,
        id: &'a str,
    ) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        Box::pin(self.publish(job, id))
    }

    fn held_up(&self) -> Option<String> {
        self.link.is_known_to_block().then(|| link::BLOCKED.to_owned())
    }
}

/// Returns what becomes of a job that was published alone.
fn verdict(said: Published) -> std::result::Result<(), Refusal> {
    match said {
        Ok(Verdict::Taken) => Ok(()),
        Ok(Verdict::Refused) => Err(Refusal::Refused("the broker did not take it (nack)".to_owned())),
        Ok(Verdict::Returned(why)) => Err(Refusal::Refused(format!("unroutable: {why}"))),
        Err(error) => Err(own_fault(&error).map_or_else(|| link::away(&error), Refusal::Refused)),
    }
}

/// Returns the broker's message, if it closed a channel because it cannot accept a message.
fn own_fault(error: &lapin::Error) -> Option<String> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(said) if matches!(said.kind(), AMQPErrorKind::Soft(_)) => {
            Some(format!("{} {}", said.get_id(), said.get_message()))
        }
        _ => None,
    }
}

fn too_long(_: impl std::error::Error) -> Error {
    Error::invalid("a name of RabbitMQ has at most 255 bytes")
}

/// Converts the error of the first connection: a login or name to be corrected, or an unavailable broker.
fn refused_at_start(error: lapin::Error) -> Error {
    let lapin::ErrorKind::ProtocolError(said) = error.kind() else {
        return Error::new(ErrorKind::Unavailable, "could not reach RabbitMQ").with_source(error);
    };
    let words = format!("RabbitMQ says: {} {}", said.get_id(), said.get_message());
    match said.kind() {
        // A queue exists even if its node is down.
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) if words.contains("down or inaccessible") => {
            Error::new(ErrorKind::Unavailable, words)
        }
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => {
            Error::invalid(words).with_hint("declare it first; punctual makes no exchanges or queues there")
        }
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
        | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => Error::invalid(words)
            .with_hint("check user, password and virtual host, and the user's rights there"),
        AMQPErrorKind::Soft(_) => Error::invalid(words),
        AMQPErrorKind::Hard(_) => Error::new(ErrorKind::Unavailable, words),
    }
}
