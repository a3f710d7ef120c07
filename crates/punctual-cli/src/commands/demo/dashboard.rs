//! `demo --serve`: the dashboard of the demo's store, on this machine only.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use punctual::{CancellationToken, Client};
use punctual_server::Server;
use tokio::{net::TcpListener, task::JoinHandle};

use super::talk;

/// The port of `punctual serve`; if it is taken, any.
const PORT: u16 = 7890;

/// Serves until it is dropped.
pub(super) struct Dashboard {
    stop: CancellationToken,
    serve: JoinHandle<()>,
}

impl Dashboard {
    pub(super) async fn start(client: &Client) -> Result<Self> {
        let at = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let port = if TcpListener::bind(at(PORT)).await.is_ok() { PORT } else { 0 };
        let (server, stop) = (Server::new(client), CancellationToken::new());
        let (ready, addr) = tokio::sync::oneshot::channel();
        let until = stop.clone();
        let serve = tokio::spawn(async move {
            let ready = |addr| {
                // Nobody waits for it if the demo was stopped.
                let _ = ready.send(addr);
            };
            let served = server.serve(at(port), &until, ready).await;
            if let Err(error) = served {
                talk(&format!("no dashboard: {error}"));
            }
        });
        let addr = addr.await.context("could not serve the dashboard")?;
        talk(&format!("dashboard http://{addr}"));
        Ok(Self { stop, serve })
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.stop.cancel();
        self.serve.abort();
    }
}
