//! What `work` and `forward` report about themselves: health, for process supervisors, and metrics.

use std::{net::SocketAddr, path::PathBuf};

use punctual::{Client, worker::Health};

use super::Session;
use crate::errors::Result;

/// Where a process reports its health. The report is one line: ok, stopping, `held up: WHY` or stuck, and the age of its last
/// iteration.
#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    /// File that is rewritten every few seconds while the process is alive (default: none).
    #[arg(long, value_name = "FILE")]
    health_file: Option<PathBuf>,
    /// Address for HTTP health checks, such as 127.0.0.1:8080: 200 while the process is alive, else 503 (default: none).
    #[arg(long, env = "PUNCTUAL_HEALTH_ADDR", hide_env_values = true, value_name = "ADDRESS")]
    health_addr: Option<SocketAddr>,
    /// Address for /metrics (for Prometheus), /healthz and /readyz over HTTP, such as 127.0.0.1:9464 (default: none).
    #[arg(long, env = "PUNCTUAL_LISTEN", hide_env_values = true, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// Something that is reported until it is dropped.
#[cfg(feature = "serve")]
pub(super) type Listening = punctual_server::Listening;
#[cfg(not(feature = "serve"))]
pub(super) type Listening = std::convert::Infallible;

impl HealthArgs {
    /// What is to be reported, and where; not started.
    pub(super) fn health(&self) -> Health {
        let health = Health::default();
        let health = if let Some(file) = &self.health_file { health.file(file) } else { health };
        if let Some(addr) = self.health_addr { health.addr(addr) } else { health }
    }

    /// Starts `--listen`, if it is given. From then on the client counts what it does.
    #[cfg(feature = "serve")]
    pub(super) fn listen(&self, client: &mut Client, health: &Health) -> Result<Option<Listening>> {
        let Some(addr) = self.listen else { return Ok(None) };
        let metrics = punctual::client::Metrics::default();
        *client = client.with_metrics(&metrics);
        Ok(Some(punctual_server::listen(addr, &metrics, health)?))
    }

    #[cfg(not(feature = "serve"))]
    pub(super) fn listen(&self, _: &mut Client, _: &Health) -> Result<Option<Listening>> {
        match self.listen {
            None => Ok(None),
            Some(_) => Err(crate::absent::failure_of("option --listen", "serve")),
        }
    }
}

/// Says where it listens.
pub(super) fn say(session: &Session, listening: Option<&Listening>) {
    #[cfg(feature = "serve")]
    if let Some(listening) = listening {
        session.say(&format!("metrics  http://{}/metrics", listening.addr()));
    }
    #[cfg(not(feature = "serve"))]
    let _ = (session, listening);
}
