//! What `work` and `forward` report about themselves: health, for process supervisors, and metrics.

use std::{net::SocketAddr, path::PathBuf};

use punctual::{Client, worker::Health};

use super::Session;
use crate::{absent::failure_of, errors::Result};

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

/// Keeps `--listen` open until it is dropped.
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
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as in a build with the feature")]
    pub(super) fn listen(&self, _: &mut Client, _: &Health) -> Result<Option<Listening>> {
        Ok(None)
    }

    /// Refuses `--listen` in a build without it, before anything is opened.
    pub(crate) fn check(&self) -> Result {
        match self.listen {
            Some(_) if !cfg!(feature = "serve") => Err(failure_of("option --listen", "serve")),
            _ => Ok(()),
        }
    }
}

/// Prints the address of `/metrics` to stderr.
pub(super) fn say(session: &Session, listening: Option<&Listening>) {
    #[cfg(feature = "serve")]
    if let Some(listening) = listening {
        session.say(&format!("metrics  http://{}/metrics", listening.addr()));
    }
    #[cfg(not(feature = "serve"))]
    let _ = (session, listening);
}
