//! Webhooks: requests by HTTP `POST`, in the format of [Standard Webhooks](https://www.standardwebhooks.com), with the job's payload
//! as their body.
//!
//! A job is handed over when it was answered by a status 2xx. `webhook-id` is the job's id, the same however often it is sent;
//! `webhook-timestamp` the second of this try. With a secret there is `webhook-signature`, too. The job's own headers go out
//! as `punctual-header-NAME`, so that a job can't write headers that mean something to the receiver; a job with one that HTTP does
//! not take is dead.
//!
//! Where the host is the same for all jobs and can't be reached, jobs wait, and spend no attempts. Where each job brings its own
//! address nobody waits for one that is dead: its jobs come back by their backoff, and others go on.
//!
//! Redirects by 307 and 308 are followed, with the same headers, the signature among them: it is made for the body, not for an address.
//! Every other redirect would turn the request into another one, and is refused. No proxy of the environment is used, since it
//! would resolve names itself, behind the back of [`guard`]; cookies are not kept.

mod guard;
mod sign;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    error::Error as StdError,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use punctual::{Error, ErrorKind, JobRecord, Result};
use reqwest::{
    Client, Response, StatusCode,
    header::{self, HeaderMap, HeaderName, HeaderValue},
    redirect::Policy,
};
use tokio::time::timeout;
use url::{Host, Url};

use self::{
    guard::{Closed, Guard},
    sign::Secret,
};
use crate::{
    fields,
    sink::{BoxFuture, CONNECT_MAX, Refusal, Sink},
    template::Template,
};

/// How long an answer is waited for, over all redirects.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long the rest of an answer is read whose status said all, so that its connection may be used again.
const REST_MAX: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Characters of a refusal's body that are told.
const WORDS_CHARS_MAX: usize = 200;
/// Redirects of one request.
const REDIRECTS_MAX: u32 = 3;
/// The shortest and the longest pause that a receiver may ask for.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_hours(24);
/// Longest address that a job may bring, in bytes.
const ADDRESS_BYTES_MAX: usize = 4 * 1024;
/// What of a job's value stands in an address as it is.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Where requests go to.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    /// To one host; behind it there may be fields of the job.
    OneHost {
        /// Scheme, host and port.
        base: String,
        /// Path and query.
        rest: Template,
        /// The same with something for each field.
        example: Url,
        /// The same for people.
        shown: String,
    },
    /// Each job brings its own.
    Own(Template),
}

impl Address {
    /// Of `https://HOST/PATH`, or of `webhook:` and a template.
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
        // What `Url` would pass over or read as something else.
        if text.contains(|c: char| c <= ' ' || ['\\', '#'].contains(&c)) {
            return Err(malformed("the address has a space, a backslash or a #"));
        }
        let (scheme, behind) = text.split_once("://").ok_or_else(|| malformed("the address has no host"))?;
        let (host, rest) = behind.split_at(behind.find(['/', '?']).unwrap_or(behind.len()));
        if host.contains(['{', '}']) {
            return Err(malformed("the host of a webhook is the same for all jobs"));
        }
        // Also a path may be a secret: of many chats it is all that somebody needs to write there.
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

    /// For people. A query may hold a key, so that it is left out.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Own(_) => "webhook: each job's own address".to_owned(),
            Self::OneHost { shown, .. } => shown.clone(),
        }
    }

    /// The address for a job.
    fn fill(&self, job: &JobRecord) -> std::result::Result<Url, String> {
        let text = match self {
            Self::Own(own) => own.fill(job)?,
            Self::OneHost { base, rest, .. } => {
                let filled =
                    rest.fill_with(job, |value, _| utf8_percent_encode(value, &PLAIN).to_string())?;
                let likely = rest.with_all("x");
                // Encoded dots mean the same in a path as plain ones, so that these values fit nowhere.
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

    /// Whether all jobs go to the same address.
    fn is_fixed(&self) -> bool {
        matches!(self, Self::OneHost { rest, .. } if rest.fixed().is_some())
    }
}

/// Sends jobs to receivers.
pub(crate) struct Webhook {
    address: Address,
    secret: Option<Secret>,
    guard: Guard,
    client: Client,
    answer: Duration,
}

impl Webhook {
    /// # Errors
    /// `Invalid` for a secret that is none, and for an address that is known to be closed to webhooks.
    pub(crate) fn new(address: Address, secret: Option<&str>, allows_private: bool) -> Result<Self> {
        let secret = secret.map(Secret::parse).transpose()?;
        let guard = Guard::new(allows_private);
        if let Address::OneHost { example, .. } = &address {
            guard.judge(example).map_err(|closed| closed_at_start(&closed))?;
        }
        let client = client(&guard, allows_private)?;
        Ok(Self { address, secret, guard, client, answer: ANSWER_MAX })
    }

    async fn post(&self, job: &JobRecord) -> std::result::Result<(), Refusal> {
        let url = self.address.fill(job).map_err(Refusal::Never)?;
        let now = SystemTime::now();
        let headers = self.headers(job, now).map_err(Refusal::Never)?;
        // Before the forwarder gives up: it does not know whose fault it is.
        let answer = self.answer.min(job.timeout / 2);
        let answered = timeout(answer, self.follow(url, headers, &job.payload.bytes)).await;
        let response = answered.unwrap_or_else(|_| Err(self.away(format!("no answer within {answer:?}"))))?;
        self.verdict(response, now).await
    }

    /// What goes out beside the body.
    fn headers(&self, job: &JobRecord, now: SystemTime) -> std::result::Result<HeaderMap, String> {
        let value = |what: &str, text: &str| {
            HeaderValue::from_bytes(text.as_bytes()).map_err(|_| format!("HTTP does not take its {what}"))
        };
        let id = job.id.to_string();
        let at_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, value("content type", &job.payload.content_type)?);
        headers.insert("webhook-id", value("id", &id)?);
        headers.insert("webhook-timestamp", HeaderValue::from(at_s));
        if let Some(secret) = &self.secret {
            let signature = secret.sign(&id, at_s, &job.payload.bytes);
            headers.insert("webhook-signature", value("signature", &signature)?);
        }
        let own = job.headers.iter().map(|(name, text)| (format!("punctual-header-{name}"), text.clone()));
        for (name, text) in fields::ours(job).into_iter().chain(own) {
            let key = HeaderName::from_bytes(name.as_bytes());
            let key = key.map_err(|_| format!("HTTP takes no such name of a header: {name:?}"))?;
            headers.append(key, value(&name, &text)?);
        }
        Ok(headers)
    }

    /// Sends a request, and again to where it is told to go.
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

    /// What becomes of a job that was answered.
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
            // Somebody stands before a receiver that is away.
            (StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT, _)
                if all =>
            {
                Refusal::Away(error)
            }
            _ if status.is_redirection() => {
                let to = moved.map_or_else(|| "somewhere else".to_owned(), |to| without_query(&to));
                Refusal::Refused(format!("{status}: it moved to {to}: give that address"))
            }
            _ => Refusal::Refused(error),
        })
    }

    /// What becomes of a job that nobody answered for.
    fn unsent(&self, error: &reqwest::Error) -> Refusal {
        if error.is_builder() {
            return Refusal::Never(chain(error));
        }
        let mut cause = StdError::source(error);
        while let Some(at) = cause {
            if let Some(closed) = at.downcast_ref::<Closed>() {
                return Refusal::Refused(closed.to_string());
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

    fn send<'a>(&'a self, job: &'a JobRecord) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        Box::pin(self.post(job))
    }
}

/// What makes requests, and lets `guard` find the way.
fn client(guard: &Guard, allows_private: bool) -> Result<Client> {
    let client = Client::builder()
        .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .referer(false)
        .redirect(Policy::none())
        .https_only(!allows_private)
        .connect_timeout(CONNECT_MAX)
        .dns_resolver(guard.clone())
        .build();
    client.map_err(|error| Error::new(ErrorKind::Unsupported, "could not set up TLS").with_source(error))
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

/// An address for people: a query may hold a key.
fn without_query(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.into()
}

/// The path of a path with a query.
fn path_of(rest: &str) -> &str {
    rest.split('?').next().unwrap_or_default()
}

/// Whether a part of a path means the folder itself or the one above.
fn is_dots(part: &str) -> bool {
    let plain: Cow<'_, [u8]> = percent_decode_str(part).into();
    matches!(&*plain, b"." | b"..")
}

/// Where an answer says to go.
fn place(response: &Response) -> Option<Url> {
    let to = response.headers().get(header::LOCATION)?.to_str().ok()?;
    response.url().join(to).ok()
}

/// The rest of an answer, as far as it is read. What breaks off is as good as its beginning.
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

/// The beginning of a body, as far as it is for people.
fn printable(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(WORDS_CHARS_MAX * 4)]);
    let words = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_CHARS_MAX);
    words.collect::<String>().trim().to_owned()
}

/// The pause that `Retry-After` asks for, in seconds or until a date.
fn pause(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let pause = if let Ok(seconds) = text.parse() {
        Duration::from_secs(seconds)
    } else {
        let until = SystemTime::from(jiff::fmt::rfc2822::parse(text).ok()?.timestamp());
        until.duration_since(now).unwrap_or_default()
    };
    Some(pause.clamp(PAUSE_MIN, PAUSE_MAX))
}

/// An error with its causes, without the address, which may hold a key.
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
