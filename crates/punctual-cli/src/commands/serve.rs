//! `punctual serve`: the HTTP API, the dashboard, metrics and health of a store.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use punctual::CancellationToken;
use punctual_server::{DashboardOptions, Server, gate::Gate, token};

use super::Session;
use crate::{
    errors::{Failure, Result},
    requests::{Requests, exit_code},
};

/// Only programs on the same machine reach it.
const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7890);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server listens on 127.0.0.1, and while the store has no token it answers only programs on the same machine. To let \
others in, make a token, and listen on another address or behind a proxy that does TLS.

Other commands, workers and clients use the server as their store: --store http://127.0.0.1:7890. With a token, they read it \
from a file: --store 'https://jobs.example.com?token_file=ana.token'.

SIGTERM, SIGHUP and SIGINT stop the server. Requests in progress have 30 s to end.

Examples:
  punctual serve
  punctual serve --listen 0.0.0.0:7890 --read-only
  punctual serve --base-path /jobs --host jobs.example.com")]
pub(crate) struct Serve {
    /// Address to listen on (default: 127.0.0.1:7890). Port 0 chooses a free port.
    #[arg(long, env = "PUNCTUAL_LISTEN", hide_env_values = true, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Path under which the server is reached, such as /jobs (default: /).
    #[arg(long, value_name = "PATH", value_parser = base_path)]
    base_path: Option<String>,
    /// Name under which requests without a token may reach the server, besides localhost; may be given several times.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Refuse all changes, on pages and in the API.
    #[arg(long)]
    read_only: bool,
    /// Hide payloads, results and values of headers on the pages.
    #[arg(long)]
    hide_payloads: bool,
}

fn base_path(text: &str) -> std::result::Result<String, String> {
    let path = text.trim_end_matches('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '~');
    if (path.is_empty() || path.starts_with('/')) && path.chars().all(plain) && !path.contains("//") {
        return Ok(path.to_owned());
    }
    Err("write a path such as /jobs, of letters, digits, -, _, . and ~".to_owned())
}

pub(super) async fn run(session: &Session, args: &Serve) -> Result {
    let addr = args.listen.unwrap_or(LISTEN_DEFAULT);
    let has_tokens = !token::list(&session.client).await?.tokens.is_empty();
    if !addr.ip().is_loopback() && !has_tokens {
        return Err(Failure::invalid(format!("will not listen on {addr} without a token"))
            .why("the store has no token, so the server could answer only programs on this machine")
            .hint("punctual token new NAME --role admin    makes one"));
    }
    let mut requests = Requests::listen()?;
    let gate = args.hosts.iter().fold(Gate::new(&session.client), Gate::host);
    let base_path = args.base_path.clone().unwrap_or_default();
    let options = DashboardOptions {
        base_path: base_path.clone(),
        read_only: args.read_only,
        hide_payloads: args.hide_payloads,
        ..DashboardOptions::default()
    };
    let server = Server::new(&session.client).gate(gate).dashboard(options);
    let stop = CancellationToken::new();
    let serve = server.serve(addr, &stop, |addr| {
        session.say(&format!("dashboard  http://{addr}{base_path}"));
        session.say(&format!("store      http://{addr}{base_path}    for --store and clients"));
    });
    let mut serve = std::pin::pin!(serve);
    let signal = tokio::select! {
        served = &mut serve => return Ok(served?),
        signal = requests.next() => signal,
    };
    stop.cancel();
    session.say("stopping; a second signal ends at once");
    tokio::select! {
        served = serve => Ok(served?),
        _ = requests.next() => Err(Failure::Silent(exit_code(signal))),
    }
}
