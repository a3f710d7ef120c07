//! A network that misbehaves on purpose: connections to a port of this machine lead to a server's socket, and what flows
//! over them is held, cut, crumbled or lost.
//!
//! A connection on which somebody waits for a notification is told apart from the others by the command that it sends, so that a
//! fault can meet either kind.
#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    select,
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

/// Bytes moved at once.
const CHUNK: usize = 64 * 1024;

/// What happens to what flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// It arrives.
    Fair,
    /// It is held, in both directions, until the weather changes: no end ever hears that anything is wrong.
    Stall,
    /// It never arrives, in both directions, and nobody hears of it; the connection stays so.
    Void,
    /// Answers arrive byte by byte.
    Crumble,
    /// Each answer whose number is a multiple of this is lost, counted over all connections, and its connection ends with it.
    Lose(u64),
}

/// The connections that a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    /// Those that carry verbs.
    Verbs,
    /// Those that wait for a notification.
    Notifications,
    /// All of them.
    All,
}

#[derive(Clone, Copy, Debug)]
struct Forecast {
    weather: Weather,
    whom: Whom,
    /// Rises with each reset.
    cuts: u64,
}

/// A port that leads to a server.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    forecast: Arc<watch::Sender<Forecast>>,
    /// Answers that were lost so far.
    lost: Arc<AtomicU64>,
    _accepting: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Begins to listen; everything passes.
    pub(crate) async fn to(socket: &Path) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let calm = Forecast { weather: Weather::Fair, whom: Whom::All, cuts: 0 };
        let (forecast, lost) = (Arc::new(watch::Sender::new(calm)), Arc::default());
        let accepting = accept(listener, socket.to_owned(), Arc::clone(&forecast), Arc::clone(&lost));
        let accepting = AbortOnDropHandle::new(tokio::spawn(accepting));
        Ok(Self { port, forecast, lost, _accepting: accepting })
    }

    /// Where it listens.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The address of a store behind it.
    pub(crate) fn url(&self, prefix: &str) -> String {
        format!("redis://127.0.0.1:{}/0?prefix={prefix}", self.port)
    }

    /// Changes the weather for some, and makes it fair for the others.
    pub(crate) fn set(&self, weather: Weather, whom: Whom) {
        self.forecast.send_modify(|forecast| (forecast.weather, forecast.whom) = (weather, whom));
    }

    /// Cuts all connections that there are.
    pub(crate) fn cut(&self) {
        self.forecast.send_modify(|forecast| forecast.cuts += 1);
    }

    /// Answers that were lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

async fn accept(
    listener: TcpListener,
    socket: PathBuf,
    forecast: Arc<watch::Sender<Forecast>>,
    lost: Arc<AtomicU64>,
) {
    let came = Arc::default();
    while let Ok((client, _)) = listener.accept().await {
        let way = Way {
            forecast: forecast.subscribe(),
            hears_notifications: Arc::default(),
            is_void: Arc::default(),
            came: Arc::clone(&came),
            lost: Arc::clone(&lost),
        };
        let socket = socket.clone();
        // Ends with either end, or by a cut; both are closed then.
        tokio::spawn(async move {
            let Ok(server) = UnixStream::connect(socket).await else { return };
            way.carry(client, server).await;
        });
    }
}

/// One connection.
#[derive(Clone)]
struct Way {
    forecast: watch::Receiver<Forecast>,
    hears_notifications: Arc<AtomicBool>,
    is_void: Arc<AtomicBool>,
    /// Answers of all connections that came while some of them were lost.
    came: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Way {
    async fn carry(mut self, client: TcpStream, server: UnixStream) {
        let _ = client.set_nodelay(true);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let cuts = self.forecast.borrow().cuts;
        let (there, back) = (self.clone(), self.clone());
        select! {
            _ = there.requests(from_client, to_server) => {}
            _ = back.answers(from_server, to_client) => {}
            _ = self.forecast.wait_for(|forecast| forecast.cuts != cuts) => {}
        }
    }

    async fn requests(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut bytes = vec![0; CHUNK];
        loop {
            let n = from.read(&mut bytes).await?;
            if n == 0 {
                return Ok(());
            }
            if bytes[..n].windows(8).any(|word| word == b"BZPOPMIN") {
                self.hears_notifications.store(true, Ordering::Relaxed);
            }
            if self.passes().await != Weather::Void {
                to.write_all(&bytes[..n]).await?;
            }
        }
    }

    async fn answers(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut bytes = vec![0; CHUNK];
        loop {
            let n = from.read(&mut bytes).await?;
            if n == 0 {
                return Ok(());
            }
            match self.passes().await {
                Weather::Void => {}
                Weather::Lose(each)
                    if (1 + self.came.fetch_add(1, Ordering::Relaxed)).is_multiple_of(each) =>
                {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Weather::Crumble => {
                    for byte in &bytes[..n] {
                        to.write_all(&[*byte]).await?;
                        to.flush().await?;
                        tokio::task::yield_now().await;
                    }
                }
                Weather::Fair | Weather::Stall | Weather::Lose(_) => to.write_all(&bytes[..n]).await?,
            }
        }
    }

    /// Waits until this connection's weather lets something pass, and says which it is then.
    async fn passes(&mut self) -> Weather {
        let hears_notifications = Arc::clone(&self.hears_notifications);
        let of = |forecast: &Forecast| match forecast.whom {
            Whom::Verbs if hears_notifications.load(Ordering::Relaxed) => Weather::Fair,
            Whom::Notifications if !hears_notifications.load(Ordering::Relaxed) => Weather::Fair,
            _ => forecast.weather,
        };
        let weather = match self.forecast.wait_for(|forecast| of(forecast) != Weather::Stall).await {
            Ok(forecast) => of(&forecast),
            // The proxy is gone, and lets flow what still does.
            Err(_) => Weather::Fair,
        };
        if weather == Weather::Void {
            self.is_void.store(true, Ordering::Relaxed);
        }
        if self.is_void.load(Ordering::Relaxed) { Weather::Void } else { weather }
    }
}
