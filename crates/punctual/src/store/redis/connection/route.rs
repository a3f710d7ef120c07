//! Finds the server for the calls of one shard. This is done again for each connection, because it changes when
//! servers die and when keys move.

mod cluster;
mod sentinel;

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redis::{RedisError, RedisResult};
use tokio::time::timeout;

use self::cluster::slot_of;
use crate::{
    core::error::Result,
    store::redis::connection::{
        Connection,
        address::{Address, Topology},
        node::Node,
        tls::Tls,
    },
};

/// How long making a connection can take, including all checks.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long one of several servers can take to name the right server, and how long that one can take to connect.
const ASK_MAX: Duration = Duration::from_secs(1);
/// The most servers of a cluster that are remembered. A few of them know all others.
const KNOWN_MAX: usize = 16;

/// The route to the server of one shard.
#[derive(Debug)]
pub(crate) struct Route {
    address: Address,
    tls: Option<Tls>,
    shard: u16,
    /// The slot of the shard's keys in a cluster.
    slot: u16,
    known: Mutex<Known>,
}

/// What was learned so far. It may be out of date.
#[derive(Debug, Default)]
struct Known {
    /// The server that another one named.
    named: Option<Node>,
    /// The servers to ask, the best first.
    guides: Vec<Node>,
}

impl Route {
    /// # Errors
    /// `Unsupported` for certificates that cannot be used.
    pub(crate) fn new(address: &Address, shard: u16) -> Result<Self> {
        let guides = match address.topology() {
            Topology::Server(_) => Vec::new(),
            Topology::Sentinel { sentinels: guides, .. } | Topology::Cluster { seeds: guides } => {
                guides.clone()
            }
        };
        let known = Mutex::new(Known { named: None, guides });
        let tls = address.tls().map(Tls::open).transpose()?;
        Ok(Self { address: address.clone(), tls, shard, slot: slot_of(shard), known })
    }

    /// Returns the address.
    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns a key of the shard.
    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        self.address.key(self.shard, name)
    }

    /// Returns the key of a queue's notifications.
    pub(crate) fn notification_key(&self, queue: &str) -> Vec<u8> {
        self.address.notification_key(self.shard, queue)
    }

    /// See [`Address::absent_key`].
    pub(crate) fn absent_key(&self) -> Option<Vec<u8>> {
        self.address.absent_key(self.shard)
    }

    /// Connects to the server that has the shard's keys, within [`CONNECT_MAX`].
    pub(crate) async fn connect(&self) -> RedisResult<(Node, Connection)> {
        // Boxed, because the TLS setup is large.
        within(CONNECT_MAX, Box::pin(self.find())).await
    }

    /// Connects to a server that another one named for a single call.
    pub(crate) async fn connect_to(&self, node: &Node) -> RedisResult<Connection> {
        within(CONNECT_MAX, Box::pin(self.open(node))).await
    }

    /// Remembers the server that another one named for all calls.
    pub(crate) fn learn(&self, node: Node) {
        self.known().named = Some(node);
    }

    async fn open(&self, node: &Node) -> RedisResult<Connection> {
        Connection::open(node, self.address.login(), self.tls.as_ref()).await
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn find(&self) -> RedisResult<(Node, Connection)> {
        if let Topology::Server(node) = self.address.topology() {
            return Ok((node.clone(), self.open(node).await?));
        }
        // A server that has lost the keys says so to each call.
        let named = self.known().named.take();
        if let Some(node) = named
            && let Ok(connection) = within(ASK_MAX, self.open(&node)).await
        {
            return Ok((node, connection));
        }
        self.ask_each().await
    }

    /// Asks servers in turn, the ones that helped last first, until one leads to the right server.
    async fn ask_each(&self) -> RedisResult<(Node, Connection)> {
        let guides = self.known().guides.clone();
        let (mut failure, mut dead) = (None::<RedisError>, Vec::new());
        for guide in guides {
            match within(ASK_MAX, self.ask(&guide, &mut dead)).await {
                Ok(found) => {
                    let mut known = self.known();
                    known.guides.retain(|other| *other != guide);
                    known.guides.insert(0, guide);
                    return Ok(found);
                }
                // A server that is down says less than the answer of another one.
                Err(e) if failure.is_none() || !e.is_io_error() => failure = Some(e),
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| odd("no server is known")))
    }

    async fn ask(&self, guide: &Node, dead: &mut Vec<Node>) -> RedisResult<(Node, Connection)> {
        match self.address.topology() {
            Topology::Sentinel { service, .. } => self.ask_sentinel(guide, service).await,
            Topology::Server(_) | Topology::Cluster { .. } => self.ask_member(guide, dead).await,
        }
    }
}

async fn within<T>(at_most: Duration, work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(at_most, work).await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

/// Makes the error for an answer that leads nowhere.
fn odd(what: &'static str) -> RedisError {
    (redis::ErrorKind::UnexpectedReturnType, what).into()
}
