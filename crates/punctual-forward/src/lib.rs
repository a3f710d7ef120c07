//! Forwards due jobs of [punctual](https://docs.rs/punctual) to RabbitMQ, NATS JetStream, a Redis stream or a
//! webhook.
//!
//! Use it to put delays, schedules, retries and dead jobs in front of any of them. A [`Forwarder`] is a handler like
//! any other.
//!
//! **At least once.** A job is acked after the target has confirmed it, never before. A confirm is RabbitMQ's confirm
//! without a return, JetStream's acknowledgement, the id of a stream's entry, or an HTTP status 2xx. If a confirm is
//! lost, the job is sent again with the same `STORE_JOB` (see below). A receiver that must not act twice remembers
//! these ids.
//!
//! `STORE_JOB` is the [identity of the store](punctual::store::Identity), `_`, and the job's id. No two stores share
//! one.
//!
//! The same fields of a job are sent to every target; `docs/operating/forwarding.md` has the details:
//!
//! | of the job | RabbitMQ | JetStream | Redis stream | webhook |
//! |---|---|---|---|---|
//! | `STORE_JOB` | `message-id` | `Nats-Msg-Id` | field `id` | `webhook-id` |
//! | payload | body | body | field `payload` | body |
//! | its content type | `content-type` | `Content-Type` | field `content-type` | `content-type` |
//! | kind | `type` | `punctual-kind` | field `kind` | `punctual-kind` |
//! | queue, attempt, due time | `punctual-…` headers | `punctual-…` headers | fields | `punctual-…` headers |
//! | its headers | headers | headers | fields `header.NAME` | headers `punctual-header-NAME` |

mod counts;
mod fields;
mod forwarder;
mod sink;
mod target;
mod template;
mod tls;

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "amqp", feature = "nats", feature = "redis"))]
mod pause;
#[cfg(feature = "redis")]
mod redis_stream;
#[cfg(test)]
mod testing;
#[cfg(feature = "webhook")]
mod webhook;

pub use counts::Counts;
pub use forwarder::Forwarder;
pub use target::Target;
