//! Health reports of `work` and `forward`, for process supervisors.

use std::{net::SocketAddr, path::PathBuf};

use punctual::worker::Health;

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
}

impl HealthArgs {
    /// What is to be reported, and where; not started.
    pub(super) fn health(&self) -> Health {
        let health = Health::default();
        let health = if let Some(file) = &self.health_file { health.file(file) } else { health };
        if let Some(addr) = self.health_addr { health.addr(addr) } else { health }
    }
}
