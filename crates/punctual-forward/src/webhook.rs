//! Webhooks: HTTP `POST` requests in the format of [Standard Webhooks](https://www.standardwebhooks.com), with the
//! job's payload as their body.
//!
//! A job is forwarded when a status 2xx answers it. `webhook-id` is the store's identity and the job's id, the same
//! for each attempt. `webhook-timestamp` is the second of this attempt. If there are secrets, `webhook-signature` is
//! sent, too: see [`secrets`]. The job's own headers are sent as `punctual-header-NAME`, so that a job cannot set
//! headers that the receiver interprets. A job with a header that HTTP does not allow becomes dead.
//!
//! If the host is the same for all jobs and cannot be reached, jobs wait and spend no attempts. If each job has its
//! own address, no job waits for an unavailable one: its jobs are retried by their backoff, and others go on.
//!
//! A redirect of a request with a signature or with configured headers is a failure, as in Standard Webhooks, because
//! it would send them to another receiver. Otherwise redirects with 307 and 308 are followed, with the same headers.
//! Any other redirect would change the request, and is refused. If a receiver answers 410, the job becomes dead.
//! Proxies of the environment are not used, because they would resolve names themselves, which bypasses [`guard`].
//! Cookies are not kept.

mod guard;
mod secrets;
mod sign;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    error::Error as StdError,
    io,
    num::IntErrorKind,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use punctual::{Error, ErrorKind, JobRecord, Result};
use reqwest::{
    Certificate, Client, Identity, Response, StatusCode,
    header::{self, HeaderMap, HeaderName, HeaderValue},
    redirect::Policy,
};
use tokio::time::timeout;
use url::{Host, Url};

pub(crate) use self::secrets::Place;
use self::{
    guard::{Closed, Guard},
    secrets::Secrets,
};
use crate::{
    fields,
    sink::{BoxFuture, CONNECT_MAX, Refusal, Sink},
    template::Template,
    tls::Tls,
};

/// How long to wait for an answer, over all redirects.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long the rest of an answer is read after its status, so that the connection can be reused.
const REST_MAX: Duration = Duration::from_secs(1);
/// The bytes of an answer that are read.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// The characters of a refusal's body that are reported.
const WORDS_CHARS_MAX: usize = 200;
/// The most redirects of one request.
const REDIRECTS_MAX: u32 = 3;
/// The shortest and the longest pause that a receiver can request. A longer one would pause the queue for too long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(10);
/// The system's error codes if the process or the machine has no descriptors left: `EMFILE`, `ENFILE`.
const NO_DESCRIPTORS: [i32; 2] = [24, 23];
/// Headers that the request itself sets, and the prefixes of others.
const OWN_HEADERS: [&str; 6] =
    ["content-type", "content-length", "transfer-encoding", "connection", "host", "user-agent"];
const OWN_PREFIXES: [&str; 2] = ["webhook-", "punctual-"];
/// Headers that must not be sent to receivers that jobs name.
const SECRET_HEADERS: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];
/// The longest address of a job, in bytes.
const ADDRESS_BYTES_MAX: usize = 4 * 1024;
/// The characters of a job's value that are not escaped in an address.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The address of requests.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    /// One host; the path and query can have fields of the job.
    OneHost {
        /// Scheme, host and port.
        base: String,
        /// Path and query.
        rest: Template,
        /// An example with a value for each field.
        example: Url,
        /// The address for people.
        shown: String,
    },
    /// Each job has its own address.
    Own(Template),
}

impl Address {
    /// Parses `https://HOST/PATH`, or `webhook:` and a template.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let hint = "write https://HOST/PATH, or webhook:{header.NAME} where each job brings its own address";
        let malformed = |why: &str| Error::invalid(why).with_hint(hint);
        if let Some(own) = text.strip_prefix("webhook:") {
            let own = Template::parse(own)?;
            if own.fixed().is_some() {
                return Err(malformed("webhook: is for addresses that jobs bring along"));
            }
            return Ok(Self::Own(own));
        }
        // Characters that `Url` would ignore or interpret differently.
        if text.contains(|c: char| c <= ' ' || ['\\', '#'].contains(&c)) {
            return Err(malformed("the address has a space, a backslash or a #"));
        }
        let (scheme, behind) = text.split_once("://").ok_or_else(|| malformed("the address has no host"))?;
        let (host, rest) = behind.split_at(behind.find(['/', '?']).unwrap_or(behind.len()));
        if host.contains(['{', '}']) {
            return Err(malformed("the host of a webhook is the same for all jobs"));
        }
        // The path may be a secret, too: for many chats it is all that is needed to write there.
        let shown = format!("{scheme}://{host}{}", if matches!(rest, "" | "/") { "" } else { "/…" });
        let base = format!("{scheme}://{host}{}", if rest.starts_with('/') { "" } else { "/" });
        let rest = Template::parse(rest)?;
        let example = Url::parse(&format!("{base}{}", rest.with_all("x")))
            .map_err(|error| malformed("this is no address of a webhook").with_source(error))?;
        if path_of(&rest.with_all("x")).split('/').any(is_dots) {
            return Err(malformed("the path has . or .. in it"));
        }
        Ok(Self::OneHost { base, rest, example, shown })
    }

    /// Returns the address for people, without the query, which may contain a key.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Own(_) => "webhook: each job's own address".to_owned(),
            Self::OneHost { shown, .. } => shown.clone(),
        }
    }

    /// Returns the address for a job.
    fn fill(&self, job: &JobRecord) -> std::result::Result<Url, String> {
        let text = match self {
            Self::Own(own) => own.fill(job)?,
            Self::OneHost { base, rest, .. } => {
                let filled =
                    rest.fill_with(job, |value, _| utf8_percent_encode(value, &PLAIN).to_string())?;
                let likely = rest.with_all("x");
                // Encoded dots mean the same as plain ones in a path, so such values are never allowed.
                for (part, likely) in path_of(&filled).split('/').zip(path_of(&likely).split('/')) {
                    if is_dots(part) || part.is_empty() != likely.is_empty() {
                        return Err(format!("a part of its path would be {part:?}"));
                    }
                }
                format!("{base}{filled}")
            }
        };
        if ADDRESS_BYTES_MAX < text.len() {
            return Err(format!("its address has more than {ADDRESS_BYTES_MAX} bytes"));
        }
        Url::parse(&text).map_err(|error| format!("its address is none: {error}"))
    }

    /// Returns whether all jobs go to the same address.
    fn is_fixed(&self) -> bool {
        matches!(self, Self::OneHost { rest, .. } if rest.fixed().is_some())
    }
}

/// Sends jobs to receivers.
pub(crate) struct Webhook {
    address: Address,
    secrets: Secrets,
    fixed: HeaderMap,
    guard: Guard,
    client: Client,
    /// Whether it uses a client certificate.
    shows_certificate: bool,
    answer: Duration,
}

/// The settings of a webhook beside its address.
#[derive(Clone, Default)]
pub(crate) struct Setup {
    /// Where the secrets for signatures are; `None` if requests are not signed.
    pub(crate) secrets: Option<Place>,
    /// Headers for each request.
    pub(crate) headers: Vec<(String, String)>,
    /// Whether private networks are allowed.
    pub(crate) allows_private: bool,
}

impl Setup {
    /// Returns whether nothing was set.
    pub(crate) const fn is_empty(&self) -> bool {
        self.secrets.is_none() && self.headers.is_empty() && !self.allows_private
    }
}

impl Webhook {
    /// # Errors
    /// `Invalid` for malformed secrets and headers, and for an address that webhooks may not use.
    pub(crate) fn new(address: Address, setup: Setup, tls: &Tls) -> Result<Self> {
        let Setup { secrets, headers, allows_private } = setup;
        let is_one_host = matches!(address, Address::OneHost { .. });
        let secrets = Secrets::new(secrets, is_one_host)?;
        let fixed = fixed(&headers, is_one_host)?;
        let guard = Guard::new(allows_private);
        if let Address::OneHost { example, .. } = &address {
            guard.judge(example).map_err(|closed| closed_at_start(&closed))?;
        }
        let client = client(&guard, allows_private, is_one_host, tls)?;
        let shows_certificate = tls.client.is_some();
        Ok(Self { address, secrets, fixed, guard, client, shows_certificate, answer: ANSWER_MAX })
    }

    async fn post(&self, job: &JobRecord, id: &str) -> std::result::Result<(), Refusal> {
        let url = self.address.fill(job).map_err(Refusal::Never)?;
        let now = SystemTime::now();
        let mut headers = self.headers(job, id, now).map_err(Refusal::Never)?;
        if let Some(signature) = self.secrets.sign(job, id, seconds(now)).await? {
            let signature =
                HeaderValue::try_from(signature).map_err(|error| Refusal::Never(error.to_string()))?;
            headers.insert("webhook-signature", signature);
        }
        // Ends before the forwarder gives up, because the forwarder would not know whose fault it is.
        let answer = self.answer.min(job.timeout / 2);
        let answered = timeout(answer, self.follow(url, headers, &job.payload.bytes)).await;
        let response = answered.unwrap_or_else(|_| Err(self.away(format!("no answer within {answer:?}"))))?;
        self.verdict(response, now).await
    }

    /// Returns the headers of a request.
    fn headers(&self, job: &JobRecord, id: &str, now: SystemTime) -> std::result::Result<HeaderMap, String> {
        let value = |what: &str, text: &str| {
            HeaderValue::from_bytes(text.as_bytes()).map_err(|_| format!("HTTP does not take its {what}"))
        };
        let mut headers = self.fixed.clone();
        headers.insert(header::CONTENT_TYPE, value("content type", &job.payload.content_type)?);
        headers.insert("webhook-id", value("id", id)?);
        headers.insert("webhook-timestamp", HeaderValue::from(seconds(now)));
        let own = job.headers.iter().map(|(name, text)| (format!("punctual-header-{name}"), text.clone()));
        for (name, text) in fields::ours(job).into_iter().chain(own) {
            let key = HeaderName::from_bytes(name.as_bytes());
            let key = key.map_err(|_| format!("HTTP takes no such name of a header: {name:?}"))?;
            headers.append(key, value(&name, &text)?);
        }
        Ok(headers)
    }

    /// Sends a request, and follows redirects.
    async fn follow(
        &self,
        mut url: Url,
        headers: HeaderMap,
        body: &[u8],
    ) -> std::result::Result<Response, Refusal> {
        let mut redirects = 0;
        loop {
            self.guard.judge(&url).map_err(|closed| Refusal::Never(closed.to_string()))?;
            let request = self.client.post(url.clone()).headers(headers.clone()).body(body.to_vec());
            let sent = request.send().await;
            let response = sent.map_err(|error| self.unsent(&error))?;
            let status = response.status();
            if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
                return Ok(response);
            }
            let to = place(&response)
                .ok_or_else(|| Refusal::Refused(format!("{status} without a place to go to")))?;
            if self.secrets.are_there() || !self.fixed.is_empty() || self.shows_certificate {
                let to = without_query(&to);
                let why = "what is signed, or has headers or a certificate of its own, is sent nowhere else";
                return Err(Refusal::Refused(format!("{status} to {to}: {why}: give that address")));
            }
            redirects += 1;
            if REDIRECTS_MAX < redirects {
                return Err(Refusal::Refused(format!("more than {REDIRECTS_MAX} redirects")));
            }
            if url.scheme() == "https" && to.scheme() != "https" {
                return Err(Refusal::Refused("it was redirected away from https".to_owned()));
            }
            self.guard
                .judge(&to)
                .map_err(|closed| Refusal::Refused(format!("it was redirected: {closed}")))?;
            url = to;
        }
    }

    /// Returns what becomes of a job that was answered.
    async fn verdict(&self, mut response: Response, now: SystemTime) -> std::result::Result<(), Refusal> {
        let status = response.status();
        let after =
            response.headers().get(header::RETRY_AFTER).and_then(|text| pause(text.to_str().ok()?, now));
        let moved = place(&response);
        let body = timeout(REST_MAX, rest(&mut response)).await.unwrap_or_default();
        if status.is_success() {
            return Ok(());
        }
        let words = printable(&body);
        let error = format!("{status}{}{words}", if words.is_empty() { "" } else { ": " });
        let all = self.address.is_fixed();
        Err(match (status, after) {
            (StatusCode::TOO_MANY_REQUESTS, after) => Refusal::Busy { after, all, error },
            (StatusCode::SERVICE_UNAVAILABLE, Some(_)) => Refusal::Busy { after, all, error },
            // A proxy answers in place of a receiver that is unavailable.
            (StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT, _)
                if all =>
            {
                Refusal::Away(error)
            }
            // The receiver wants no further attempts.
            (StatusCode::GONE, _) => Refusal::Never(error),
            _ if status.is_redirection() => {
                let to = moved.map_or_else(|| "somewhere else".to_owned(), |to| without_query(&to));
                Refusal::Refused(format!("{status}: it moved to {to}: give that address"))
            }
            _ => Refusal::Refused(error),
        })
    }

    /// Returns what becomes of a job without an answer.
    fn unsent(&self, error: &reqwest::Error) -> Refusal {
        if error.is_builder() {
            return Refusal::Never(chain(error));
        }
        let mut cause = StdError::source(error);
        while let Some(at) = cause {
            if let Some(closed) = at.downcast_ref::<Closed>() {
                return Refusal::Refused(closed.to_string());
            }
            let code = at.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
            if code.is_some_and(|code| NO_DESCRIPTORS.contains(&code)) {
                return Refusal::Ours(format!("no descriptors are left here: {at}"));
            }
            cause = at.source();
        }
        self.away(chain(error))
    }

    fn away(&self, error: String) -> Refusal {
        match self.address {
            Address::OneHost { .. } => Refusal::Away(error),
            Address::Own(_) => Refusal::Refused(error),
        }
    }

    async fn look(&self) -> Result<()> {
        let Address::OneHost { example, .. } = &self.address else { return Ok(()) };
        let Some(Host::Domain(name)) = example.host() else { return Ok(()) };
        let Ok(found) = timeout(CONNECT_MAX, Guard::resolve(&self.guard, name)).await else {
            let late = format!("could not resolve {name} within {} s", CONNECT_MAX.as_secs());
            return Err(Error::new(ErrorKind::Unavailable, late));
        };
        match found {
            Ok(_) => Ok(()),
            Err(error) => Err(match error.downcast::<Closed>() {
                Ok(closed) => closed_at_start(&closed),
                Err(error) => {
                    Error::new(ErrorKind::Unavailable, format!("could not resolve {name}")).with_source(error)
                }
            }),
        }
    }
}

impl Sink for Webhook {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.look())
    }

    fn send<'a>(
        &'a self,
        job: &'a JobRecord,
        id: &'a str,
    ) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        Box::pin(self.post(job, id))
    }
}

/// Makes the HTTP client, which resolves names with `guard`.
fn client(guard: &Guard, allows_private: bool, is_one_host: bool, tls: &Tls) -> Result<Client> {
    let failed =
        |error: reqwest::Error| Error::new(ErrorKind::Unsupported, "could not set up TLS").with_source(error);
    let client = Client::builder()
        .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .referer(false)
        .redirect(Policy::none())
        .https_only(!allows_private)
        .connect_timeout(CONNECT_MAX)
        .dns_resolver(guard.clone());
    // If jobs name the hosts, no connection is kept. Idle connections to many hosts would use up the descriptors of
    // the process. So there are at most as many connections as slots.
    let client = if is_one_host { client } else { client.pool_max_idle_per_host(0) };
    let client = match &tls.ca {
        Some(ca) => client.tls_certs_merge(Certificate::from_pem_bundle(ca.as_bytes()).map_err(failed)?),
        None => client,
    };
    let client = match &tls.client {
        Some((cert, key)) => {
            let pem = [cert.as_str(), "\n", key.as_str()].concat();
            client.identity(Identity::from_pem(pem.as_bytes()).map_err(failed)?)
        }
        None => client,
    };
    client.build().map_err(failed)
}

/// Returns the seconds since 1970.
fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the configured headers of each request. Their values are never shown.
fn fixed(headers: &[(String, String)], is_one_host: bool) -> Result<HeaderMap> {
    let mut fixed = HeaderMap::new();
    for (name, value) in headers {
        let key = HeaderName::from_bytes(name.as_bytes());
        let key = key.map_err(|_| Error::invalid(format!("{name:?} is no name of a header")))?;
        let lower = key.as_str();
        if OWN_HEADERS.contains(&lower) || OWN_PREFIXES.iter().any(|prefix| lower.starts_with(prefix)) {
            return Err(
                Error::invalid(format!("the header {lower} is made of the job")).with_hint("leave it out")
            );
        }
        if !is_one_host && SECRET_HEADERS.contains(&lower) {
            return Err(Error::invalid(format!(
                "the header {lower} would go to every receiver that a job names"
            ))
            .with_hint("sign the requests, with a secret for each receiver"));
        }
        let value = HeaderValue::try_from(value);
        let mut value =
            value.map_err(|_| Error::invalid(format!("the value of the header {lower} is none")))?;
        value.set_sensitive(true);
        fixed.append(key, value);
    }
    Ok(fixed)
}

fn closed_at_start(closed: &Closed) -> Error {
    let hint = match closed {
        Closed::Malformed(_) => "write https://HOST/PATH",
        Closed::Private(_) => {
            "write https:// and a public host, or allow private addresses if all of them are yours"
        }
    };
    Error::invalid(format!("webhooks don't go there: {closed}")).with_hint(hint)
}

/// Returns an address for people, without the query, which may contain a key.
fn without_query(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.into()
}

/// Returns the path of a path with a query.
fn path_of(rest: &str) -> &str {
    rest.split('?').next().unwrap_or_default()
}

/// Returns whether a part of a path means the folder itself or its parent.
fn is_dots(part: &str) -> bool {
    let plain: Cow<'_, [u8]> = percent_decode_str(part).into();
    matches!(&*plain, b"." | b"..")
}

/// Returns the target of a redirect.
fn place(response: &Response) -> Option<Url> {
    let to = response.headers().get(header::LOCATION)?.to_str().ok()?;
    response.url().join(to).ok()
}

/// Reads the rest of an answer, within bounds. If it breaks off, the beginning is used.
async fn rest(response: &mut Response) -> Vec<u8> {
    let mut read = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        read.extend_from_slice(&chunk);
        if BODY_BYTES_MAX < read.len() {
            break;
        }
    }
    read
}

/// Returns the beginning of a body as text for people.
fn printable(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(WORDS_CHARS_MAX * 4)]);
    let words = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_CHARS_MAX);
    words.collect::<String>().trim().to_owned()
}

/// Returns the pause of `Retry-After`: a number of seconds, or a date in one of the three forms of HTTP (RFC 9110, 5.6.7) or that of mail.
fn pause(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let pause = match text.parse::<u64>().map_err(|error| *error.kind()) {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(IntErrorKind::PosOverflow) => PAUSE_MAX,
        Err(_) => {
            let of_mail = || Some(jiff::fmt::rfc2822::parse(text).ok()?.timestamp().into());
            let until = httpdate::parse_http_date(text).ok().or_else(of_mail)?;
            until.duration_since(now).unwrap_or_default()
        }
    };
    Some(pause.clamp(PAUSE_MIN, PAUSE_MAX))
}

/// Formats an error and its causes without the address, which may contain a key.
fn chain(error: &reqwest::Error) -> String {
    let mut words = if error.is_timeout() { "no answer in time" } else { "could not be reached" }.to_owned();
    let mut cause = StdError::source(error);
    while let Some(at) = cause {
        let said = at.to_string();
        if !words.contains(&said) {
            words = format!("{words}: {said}");
        }
        cause = at.source();
    }
    words
}
