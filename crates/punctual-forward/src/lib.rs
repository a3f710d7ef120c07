//! Hands due jobs of [punctual](https://docs.rs/punctual) over to other systems: RabbitMQ, NATS JetStream, a Redis stream, a
//! webhook. A delay, a schedule, a retry policy and a dead letter in front of any of them is one [`Forwarder`], which is
//! a handler like any other.
//!
//! **At least once.** A job is acked when the other side confirmed it, never before: RabbitMQ's confirm without a return,
//! JetStream's acknowledgement, the id of a stream's entry, an HTTP status 2xx. Where a confirm is lost the job is handed
//! over again, under the same `STORE_JOB` (see below); whoever must not act twice remembers ids.
//!
//! `STORE_JOB` is the [identity of the store](punctual::store::Identity), `_`, and the job's id: two stores never share one.
//!
//! What goes out of a job is the same everywhere; `docs/operating/forwarding.md` has the table:
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
