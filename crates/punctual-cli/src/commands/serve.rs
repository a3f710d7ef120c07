//! `punctual serve`: the HTTP API, the dashboard, metrics and health of a store.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use punctual::CancellationToken;
use punctual_server::{
    DashboardOptions, Server, Tls,
    gate::{Gate, Proxy},
    token::{self, Role},
};

use super::{Session, token::role};
#[cfg(not(feature = "mcp"))]
use crate::absent::failure_of;
use crate::{
    descriptors,
    errors::{Failure, Result},
    requests::{Requests, exit_code},
};

/// Only programs on the same machine reach it.
pub(super) const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7890);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server listens on 127.0.0.1, and while the store has no token it answers only programs on the same machine. To let \
others in, make a token, and listen on another address or behind a proxy that does TLS.

Other commands, workers and clients use the server as their store: --store http://127.0.0.1:7890. With a token, they read it \
from a file: --store 'https://jobs.example.com?token_file=ana.token'.

SIGTERM, SIGHUP and SIGINT stop the server. Requests in progress have 30 s to end.

Examples:
  punctual serve
  punctual serve --listen 0.0.0.0:7890 --tls-cert jobs.pem --tls-key jobs.key
  punctual serve --sqs --base-path /jobs --host jobs.example.com")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
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
    /// Speak TLS, with the certificates in this PEM file, the server's own first. A changed file is read again.
    #[arg(long, env = "PUNCTUAL_TLS_CERT", hide_env_values = true, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate.
    #[arg(long, env = "PUNCTUAL_TLS_KEY", hide_env_values = true, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Address or network of a proxy that has authenticated its users and names them in a header; may be given several
    /// times.
    #[arg(long = "proxy", value_name = "NETWORK")]
    proxies: Vec<String>,
    /// Header in which the proxy names the user (default: x-forwarded-user).
    #[arg(long, value_name = "NAME")]
    proxy_header: Option<String>,
    /// Role of the users of the proxy: read, operate or admin (default: read).
    #[arg(long, value_parser = role, value_name = "ROLE")]
    proxy_role: Option<Role>,
    /// Refuse all changes, on pages and in the API.
    #[arg(long)]
    read_only: bool,
    /// Hide payloads, results and values of headers on the pages.
    #[arg(long)]
    hide_payloads: bool,
    /// Serve tools for assistants at /mcp, by the Model Context Protocol. They read the store, and change nothing.
    #[arg(long)]
    mcp: bool,
    /// Serve the protocol of Amazon SQS, for SDKs of AWS, Celery and others. Requests are signed with keys of token new --sqs.
    #[arg(long)]
    sqs: bool,
}

fn base_path(text: &str) -> std::result::Result<String, String> {
    let path = text.trim_end_matches('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '~');
    if (path.is_empty() || path.starts_with('/')) && path.chars().all(plain) && !path.contains("//") {
        return Ok(path.to_owned());
    }
    Err("write a path such as /jobs, of letters, digits, -, _, . and ~".to_owned())
}

fn gate(session: &Session, args: &Serve) -> Result<Gate> {
    let gate = args.hosts.iter().fold(Gate::new(&session.client), Gate::host);
    if args.proxies.is_empty() {
        if args.proxy_header.is_some() || args.proxy_role.is_some() {
            return Err(Failure::invalid("--proxy-header and --proxy-role need --proxy"));
        }
        return Ok(gate);
    }
    let role = args.proxy_role.unwrap_or(Role::Read);
    let mut proxy = Proxy::new(args.proxies.iter().map(String::as_str), role)?;
    if let Some(name) = &args.proxy_header {
        proxy = proxy.header(name)?;
    }
    Ok(gate.proxy(if args.hide_payloads { proxy.hide_payloads() } else { proxy }))
}

#[cfg(feature = "mcp")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature there is an error")]
fn with_tools(server: Server) -> Result<Server> {
    Ok(server.mcp())
}

#[cfg(not(feature = "mcp"))]
fn with_tools(_: Server) -> Result<Server> {
    Err(failure_of("option --mcp", "mcp"))
}

pub(super) async fn run(session: &Session, args: &Serve) -> Result {
    let addr = args.listen.unwrap_or(LISTEN_DEFAULT);
    let has_tokens = !token::list(&session.client).await?.tokens.is_empty();
    if !addr.ip().is_loopback() && !has_tokens && args.proxies.is_empty() {
        return Err(Failure::invalid(format!("will not listen on {addr} without a token"))
            .why("the store has no token, so the server could answer only programs on this machine")
            .hint("punctual token new NAME --role admin    makes one"));
    }
    descriptors::raise();
    let mut requests = Requests::listen()?;
    let gate = gate(session, args)?;
    let base_path = args.base_path.clone().unwrap_or_default();
    let options = DashboardOptions {
        base_path: base_path.clone(),
        read_only: args.read_only,
        hide_payloads: args.hide_payloads,
        ..DashboardOptions::default()
    };
    let server = Server::new(&session.client).gate(gate).dashboard(options);
    let (server, scheme) = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => (server.tls(Tls::open(cert, key)?), "https"),
        (None, None) => (server, "http"),
        // Of options in the configuration file, the command line does not know which belong together.
        (Some(_), None) => return Err(Failure::invalid("--tls-cert needs --tls-key")),
        (None, Some(_)) => return Err(Failure::invalid("--tls-key needs --tls-cert")),
    };
    let server = if args.mcp { with_tools(server)? } else { server };
    let server = if args.sqs { server.sqs() } else { server };
    let stop = CancellationToken::new();
    let serve = server.serve(addr, &stop, |addr| {
        session.say(&format!("dashboard  {scheme}://{addr}{base_path}"));
        session.say(&format!("store      {scheme}://{addr}{base_path}    for --store and clients"));
        if args.mcp {
            session.say(&format!("tools      {scheme}://{addr}{base_path}/mcp    for assistants"));
        }
        if args.sqs {
            session.say(&format!("sqs        {scheme}://{addr}{base_path}    for SDKs of AWS, as endpoint URL"));
        }
        if !has_tokens {
            session.say(
                "There is no token yet, so each program on this machine is an admin. A proxy on this machine that adds no \
                 X-Forwarded-For makes its callers admins, too. punctual token new NAME --role admin    makes a token",
            );
        } else if !addr.ip().is_loopback() && args.tls_cert.is_none() {
            session.say("Tokens travel unencrypted. Use --tls-cert and --tls-key, or a proxy that speaks TLS.");
        }
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
