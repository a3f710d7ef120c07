//! `demo --serve`: the dashboard of the demo's store, on this machine only.

use anyhow::{Context as _, Result};
use punctual::{CancellationToken, Client};
use punctual_server::Server;
use tokio::{net::TcpListener, task::JoinHandle};

use super::talk;
use crate::commands::serve::LISTEN_DEFAULT;

/// Serves until it is dropped.
pub(super) struct Dashboard {
    stop: CancellationToken,
    serve: JoinHandle<()>,
}

impl Dashboard {
    pub(super) async fn start(client: &Client) -> Result<Self> {
        let mut addr = LISTEN_DEFAULT;
        if TcpListener::bind(addr).await.is_err() {
            // Any that is free.
            addr.set_port(0);
        }
        let (server, stop) = (Server::new(client), CancellationToken::new());
        let (ready, listening) = tokio::sync::oneshot::channel();
        let until = stop.clone();
        let serve = tokio::spawn(async move {
            let ready = |addr| {
                // Nobody waits for it if the demo was stopped.
                let _ = ready.send(addr);
            };
            let served = server.serve(addr, &until, ready).await;
            if let Err(error) = served {
                talk(&format!("no dashboard: {error}"));
            }
        });
        let addr = listening.await.context("could not serve the dashboard")?;
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
