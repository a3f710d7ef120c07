//! The store behind a server of punctual: each call is `POST /api/v1/CALL` with a body of [`wire`](super::wire).
//!
//! The server's store decides everything. `wire/call.rs` says which body belongs to which call; `link.rs` sends it. What
//! makes a call safe to repeat, the number of its caller or the fence of a lease, goes through unchanged, so S1 to S17
//! hold as they do beside the store. A lost answer is `UnknownOutcome`, and the runtime repeats the call.
//!
//! A wait is one request that the server answers when there may be work. It reads the store before it sleeps, so nothing
//! that arrives between two requests is missed.

mod link;

use std::{
    any::Any,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use self::link::Link;
use super::{
    BoxFuture, Call, Durability, Reply, Store,
    sealed::Sealed,
    wire::{StoreReply, WAIT_MAX, call},
};
use crate::core::error::{Error, Result};

/// Longest time to wait for an answer.
const CALL_MAX: Duration = Duration::from_secs(30);

/// A store behind a server, by its address.
///
/// Each handle has connections of its own.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// let client = punctual::Client::connect("https://jobs.example.com?token_file=/run/secrets/punctual").await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct HttpStore {
    link: Link,
    durability: Durability,
    /// The shard for which to make the next ids, as the server last said.
    shard: AtomicU16,
}

impl HttpStore {
    /// Connects to the server at `url`: `http://HOST[:PORT][/BASE]` or `https://…`.
    ///
    /// Options follow after `?`, separated by `&`: `token_file=PATH`, a file with the token, and `ca=PATH`, certificates of
    /// authorities in PEM that are trusted in addition to those of the system. A token can also stand before the host:
    /// `https://:TOKEN@HOST`.
    ///
    /// # Errors
    /// `Invalid` for an address that cannot be parsed, `Unavailable` if nothing answers there, `Unauthenticated` if
    /// the server needs another token, `Unsupported` if it is no server of punctual.
    pub async fn open(url: &str) -> Result<Self> {
        let link = Link::open(url)?;
        let reply: StoreReply =
            link.call("store", b"{}".to_vec(), CALL_MAX, |answer| serde_json::from_slice(answer)).await?;
        Ok(Self { link, durability: reply.durability, shard: AtomicU16::new(reply.shard) })
    }

    async fn send(&self, call: Call<'_>) -> Result<Reply> {
        let name = call.name();
        if let Call::Tool(op) = call {
            // Before it is sent, since the wire rounds durations to whole milliseconds.
            op.check()?;
        }
        let at_most = match call {
            Call::Wait { at_most, .. } => at_most.min(WAIT_MAX) + CALL_MAX,
            _ => CALL_MAX,
        };
        let body = call::body(&call)
            .map_err(|e| Error::invalid(format!("could not encode the call {name}")).with_source(e))?;
        let (reply, shard) = self.link.call(name, body, at_most, |answer| call::reply(&call, answer)).await?;
        if let Some(shard) = shard {
            self.shard.store(shard, Ordering::Relaxed);
        }
        Ok(reply)
    }
}

impl Sealed for HttpStore {}

impl Store for HttpStore {
    fn url(&self) -> &str {
        self.link.url()
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn shard(&self) -> u16 {
        self.shard.load(Ordering::Relaxed)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(self.send(call))
    }
}
