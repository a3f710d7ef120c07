//! One connection to a server, from its opening to its end. It never repairs itself.

pub(crate) mod address;
pub(crate) mod awake;
pub(crate) mod clock_offset;
pub(crate) mod durability;
pub(crate) mod fault;
pub(crate) mod info;
pub(crate) mod io_thread;
pub(crate) mod link;
pub(crate) mod node;
pub(crate) mod preflight;
pub(crate) mod redirect;
pub(crate) mod route;
pub(crate) mod tls;

use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisResult, Value, aio::MultiplexedConnection,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_util::task::AbortOnDropHandle;

use self::{node::Node, tls::Tls};

/// A connection that many callers can use at a time. It is closed when its last user drops it.
#[derive(Debug)]
pub(super) struct Connection {
    redis: MultiplexedConnection,
    /// Moves the bytes until the connection breaks.
    driver: AbortOnDropHandle<()>,
    /// Whether its server is on this machine.
    is_local: bool,
}

impl Connection {
    /// Connects, logs in, and selects the database. Without a timeout; on the current runtime.
    pub(super) async fn open(
        node: &Node,
        login: &RedisConnectionInfo,
        tls: Option<&Tls>,
    ) -> RedisResult<Self> {
        match node {
            Node::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // A verb is one small packet, and a caller waits for its answer.
                stream.set_nodelay(true)?;
                let is_local = stream.peer_addr()?.ip().is_loopback();
                match tls {
                    Some(tls) => Self::speak(login, tls.speak(host, stream).await?, is_local).await,
                    None => Self::speak(login, stream, is_local).await,
                }
            }
            #[cfg(unix)]
            Node::Unix(path) => Self::speak(login, tokio::net::UnixStream::connect(path).await?, true).await,
            #[cfg(not(unix))]
            Node::Unix(_) => {
                Err((redis::ErrorKind::InvalidClientConfig, "there are no such sockets here").into())
            }
        }
    }

    async fn speak(
        login: &RedisConnectionInfo,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        is_local: bool,
    ) -> RedisResult<Self> {
        // The client's default timeout of half a second is shorter than a wait for work.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (redis, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
        Ok(Self { redis, driver: AbortOnDropHandle::new(tokio::spawn(driver)), is_local })
    }

    /// Returns whether it is usable. A command that meets a closed connection was not sent.
    pub(super) fn is_open(&self) -> bool {
        !self.driver.is_finished()
    }

    /// Returns whether its server is on this machine.
    pub(super) const fn is_local(&self) -> bool {
        self.is_local
    }

    /// Sends one command. A refusal is returned as a value.
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        self.redis.clone().send_packed_command(cmd).await
    }

    /// Sends several commands at once. Refusals are returned as values.
    pub(super) async fn send_all(&self, cmds: &Pipeline) -> RedisResult<Vec<Value>> {
        self.redis.clone().send_packed_commands(cmds, 0, cmds.len()).await
    }
}
