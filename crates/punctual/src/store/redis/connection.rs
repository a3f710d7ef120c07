//! One connection to a server, from its opening to its end: it never repairs itself.

pub(crate) mod address;
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

/// A connection that many may use at a time; closed when it is dropped with its last user.
#[derive(Debug)]
pub(super) struct Connection {
    redis: MultiplexedConnection,
    /// Moves the bytes, until the connection breaks.
    driver: AbortOnDropHandle<()>,
}

impl Connection {
    /// Connects, says who comes, and chooses the database. Without a limit in time; on the current runtime.
    pub(super) async fn open(
        node: &Node,
        login: &RedisConnectionInfo,
        tls: Option<&Tls>,
    ) -> RedisResult<Self> {
        match node {
            Node::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // A verb is one small packet, and somebody waits for its answer.
                stream.set_nodelay(true)?;
                match tls {
                    Some(tls) => Self::speak(login, tls.speak(host, stream).await?).await,
                    None => Self::speak(login, stream).await,
                }
            }
            #[cfg(unix)]
            Node::Unix(path) => Self::speak(login, tokio::net::UnixStream::connect(path).await?).await,
            #[cfg(not(unix))]
            Node::Unix(_) => {
                Err((redis::ErrorKind::InvalidClientConfig, "there are no such sockets here").into())
            }
        }
    }

    async fn speak(
        login: &RedisConnectionInfo,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> RedisResult<Self> {
        // Its own limit of half a second is shorter than a wait for work.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (redis, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
        Ok(Self { redis, driver: AbortOnDropHandle::new(tokio::spawn(driver)) })
    }

    /// Whether anything may be sent: what meets a closed connection was not sent.
    pub(super) fn is_open(&self) -> bool {
        !self.driver.is_finished()
    }

    /// Sends one command. A refusal is a value.
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        self.redis.clone().send_packed_command(cmd).await
    }

    /// Sends several commands at once. Refusals are values.
    pub(super) async fn send_all(&self, cmds: &Pipeline) -> RedisResult<Vec<Value>> {
        self.redis.clone().send_packed_commands(cmds, 0, cmds.len()).await
    }
}
