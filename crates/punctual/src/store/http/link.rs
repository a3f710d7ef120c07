//! Sends one call and reads its answer, or makes an error of what came instead.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use reqwest::{
    Certificate, Client, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue},
    redirect::Policy,
};
use serde::Deserialize;

use crate::{
    core::error::{Error, ErrorKind, Result},
    store::url::with_plain_plus,
};

/// Longest time to connect.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest time that a connection is kept without a call. Servers close theirs after a minute.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Largest answer: a thousand jobs with everything that they can carry beside 4 MiB of payloads.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest file with a token or with certificates.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// What the types of the server's errors begin with. Other programs have errors of the same form.
const PROBLEMS: &str = "https://punctual.dev/problems/";

/// The way to a server.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    /// Below which the calls are.
    base: Url,
    /// Without the token, for people.
    shown: String,
    /// Whether a server of punctual has answered. From then on, an answer that is not one of it is that of something between,
    /// and passes.
    is_known: AtomicBool,
}

/// An error as the server writes it (RFC 9457).
#[derive(Deserialize)]
struct Problem {
    r#type: String,
    code: String,
    detail: String,
    hint: Option<String>,
}

impl Link {
    /// Parses the address and reads its files; connects to nothing.
    pub(super) fn open(url: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::invalid(format!("the address of the server is wrong: {what}"))
                .with_hint("write https://HOST[:PORT][/BASE][?token_file=PATH&ca=PATH]")
        };
        // The error of the parser quotes nothing, so no token is shown.
        let mut base = Url::parse(&with_plain_plus(url)).map_err(|e| wrong(&e.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(wrong("it has no host"));
        }
        if !base.username().is_empty() {
            return Err(wrong("a token stands after a colon, as in https://:TOKEN@HOST"));
        }
        let mut token = base.password().map(str::to_owned);
        let mut ca = None;
        for (name, value) in base.query_pairs() {
            match &*name {
                "token_file" if token.is_some() => return Err(wrong("it has two tokens")),
                "token_file" => token = Some(read(&value)?.trim().to_owned()),
                "ca" => ca = Some(read(&value)?),
                // A longer one can be a token.
                other if 16 < other.len() => return Err(wrong("it has an option that none has")),
                other => return Err(wrong(&format!("{other:?} is none of its options"))),
            }
        }
        base.set_query(None);
        base.set_fragment(None);
        // It has a host, so both can be taken away.
        let _ = base.set_password(None);
        let shown = base.as_str().trim_end_matches('/').to_owned();
        let path = format!("{}/api/v1/", base.path().trim_end_matches('/'));
        base.set_path(&path);
        let is_here = matches!(base.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        Ok(Self {
            client: client(token.as_deref(), ca.as_deref(), is_here)?,
            base,
            shown,
            is_known: AtomicBool::new(false),
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.shown
    }

    /// Makes a call.
    ///
    /// # Errors
    /// `Unavailable` if the server was not reached, `UnknownOutcome` if its answer was lost, else what it says. An answer of
    /// something else, such as a proxy, is one of the two once the server has answered a call.
    pub(super) async fn call<R>(
        &self,
        name: &str,
        body: Vec<u8>,
        at_most: Duration,
        read: impl FnOnce(&[u8]) -> serde_json::Result<R>,
    ) -> Result<R> {
        let url = self.base.join(name).expect("invariant: the name of a call is a path");
        let sent = self.client.post(url).body(body).timeout(at_most).send().await;
        let mut answer = sent.map_err(|e| self.lost(e))?;
        let status = answer.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|e| self.lost(e))? {
            if ANSWER_BYTES_MAX < bytes.len() + chunk.len() {
                return Err(self.odd(name));
            }
            bytes.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            return Err(self.refused(name, status, &bytes));
        }
        let answer = read(&bytes).map_err(|e| self.odd(name).with_source(e))?;
        self.is_known.store(true, Ordering::Relaxed);
        Ok(answer)
    }

    /// Returns the error for an answer of success that no server of punctual gives. The call can have been done.
    fn odd(&self, name: &str) -> Error {
        let text = format!("the answer of {} to {name} is not one of a punctual server", self.shown);
        let kind = if self.is_known() { ErrorKind::UnknownOutcome } else { ErrorKind::Unsupported };
        Error::new(kind, text)
            .with_hint(
                "check the address, what is in front of the server, and whether it has the same version",
            )
            .foreign()
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Returns the error for a call without an answer.
    fn lost(&self, error: reqwest::Error) -> Error {
        // Its own text repeats the address.
        let error = error.without_url();
        if error.is_connect() {
            let text = format!("could not connect to the server at {}", self.shown);
            return Error::new(ErrorKind::Unavailable, text)
                .with_hint("check the address, and that `punctual serve` runs there")
                .with_source(error);
        }
        let text = format!("the answer of the server at {} was lost", self.shown);
        Error::new(ErrorKind::UnknownOutcome, text).with_source(error)
    }

    /// Returns the error that the server, or a proxy in front of it, answered with.
    fn refused(&self, name: &str, status: StatusCode, body: &[u8]) -> Error {
        if let Ok(problem) = serde_json::from_slice::<Problem>(body)
            && problem.r#type.starts_with(PROBLEMS)
        {
            let kind = ErrorKind::ALL.into_iter().find(|kind| kind.code() == problem.code);
            let kind = kind.or_else(|| kind_of(status)).unwrap_or(ErrorKind::Unsupported);
            let hint = match kind {
                ErrorKind::Unauthenticated => {
                    Some("name a file with a token: https://HOST?token_file=PATH".to_owned())
                }
                _ => problem.hint,
            };
            return hint.into_iter().fold(Error::new(kind, problem.detail), Error::with_hint);
        }
        let text =
            format!("{} answered {name} with {status}, which is no answer of a punctual server", self.shown);
        let kind = if self.is_known() {
            passing(status)
        } else {
            // The address or the proxy is wrong.
            kind_of(status).unwrap_or(ErrorKind::Unsupported)
        };
        Error::new(kind, text)
            .with_hint("check the address, and what is in front of the server, such as a proxy")
            .foreign()
    }
}

/// Returns the kind of an error that has only a status, or a code that only another version knows.
const fn kind_of(status: StatusCode) -> Option<ErrorKind> {
    match status {
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Some(ErrorKind::UnknownOutcome),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            Some(ErrorKind::Unavailable)
        }
        StatusCode::UNAUTHORIZED => Some(ErrorKind::Unauthenticated),
        StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => Some(ErrorKind::Forbidden),
        StatusCode::PAYLOAD_TOO_LARGE => Some(ErrorKind::TooLarge),
        _ => None,
    }
}

/// Returns the kind of an answer that is not the server's, after it has answered: something between answers in its place.
///
/// A refusal was made before the call was passed on. Whatever else failed can have failed after that.
fn passing(status: StatusCode) -> ErrorKind {
    match status {
        // A smaller call can pass.
        StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::TooLarge,
        _ if status.is_redirection() || status.is_client_error() => ErrorKind::Unavailable,
        _ => ErrorKind::UnknownOutcome,
    }
}

fn read(path: &str) -> Result<String> {
    let wrong =
        |what: &str| Error::invalid(format!("could not read the file {path:?} of the address: {what}"));
    let size = fs::metadata(path).map_err(|e| wrong(&e.to_string()))?.len();
    if FILE_BYTES_MAX < size {
        return Err(wrong(&format!("{size} bytes are over the limit of {FILE_BYTES_MAX}")));
    }
    fs::read_to_string(path).map_err(|e| wrong(&e.to_string()))
}

/// Makes the HTTP client. It goes through the proxy that the environment names, unless the server is on this machine.
fn client(token: Option<&str>, ca: Option<&str>, is_here: bool) -> Result<Client> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(token) = token {
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let mut value =
            value.map_err(|_| Error::invalid("the token of the server has characters that none has"))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    // Without effect if the program has chosen one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let failed =
        |e: reqwest::Error| Error::new(ErrorKind::Unsupported, "could not set up TLS").with_source(e);
    let builder = Client::builder()
        .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .redirect(Policy::none())
        .connect_timeout(CONNECT_MAX)
        .pool_idle_timeout(IDLE_MAX);
    let builder = if is_here { builder.no_proxy() } else { builder };
    let builder = match ca {
        Some(ca) => builder.tls_certs_merge(Certificate::from_pem_bundle(ca.as_bytes()).map_err(failed)?),
        None => builder,
    };
    builder.build().map_err(failed)
}
