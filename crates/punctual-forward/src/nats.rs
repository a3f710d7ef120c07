//! NATS JetStream, by publishing to the stream that has the subject.
//!
//! A job is forwarded when the stream has acknowledged it: it is then as safe as everything in that stream. Messages
//! with the same `Nats-Msg-Id` within the stream's duplicate window (default: two minutes) are stored once. So a
//! message that is published again after a lost acknowledgement is not delivered twice.

mod link;

use std::{error::Error as _, path::PathBuf, str::FromStr as _, time::Duration};

use async_nats::{
    HeaderMap, HeaderName, HeaderValue, ServerAddr,
    header::NATS_MESSAGE_ID,
    jetstream::{
        self,
        context::{GetStreamByNameErrorKind, PublishError, PublishErrorKind, RequestError, RequestErrorKind},
        message::PublishMessage,
    },
};
use percent_encoding::percent_decode_str;
use punctual::{Error, ErrorKind, JobRecord, Result};
use tokio::time::timeout;
use url::Url;

use self::link::{Fault, Link};
use crate::{
    fields,
    sink::{BoxFuture, Refusal, Sink},
    target::Options,
    template::Template,
    tls::Tls,
};

/// The status with which JetStream says that it is unavailable now.
const UNAVAILABLE: usize = 503;
/// The prefixes of the server's own subjects, and of replies. A job that chose one could give orders to the server:
/// the subject `$JS.API.STREAM.DELETE.jobs` deletes a stream.
const RESERVED: [&str; 2] = ["$", "_INBOX."];
/// The prefix of headers that the server interprets. For example, `Nats-Rollup` empties a stream.
const ORDERS: &str = "nats-";

/// A server, and the subject of jobs.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    server: ServerAddr,
    login: Login,
    subject: Template,
    answer: Duration,
}

/// The login.
#[derive(Clone)]
enum Login {
    Nobody,
    User {
        user: String,
        password: String,
    },
    Token(String),
    /// A file with a token and its key.
    Credentials(PathBuf),
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login")
    }
}

impl Address {
    /// Parses an address that was split into its URL and options.
    pub(crate) fn parse(mut url: Url, options: &mut Options) -> Result<Self> {
        if url.host_str().is_none_or(str::is_empty) {
            return Err(
                Error::invalid("the address names no server").with_hint("write nats://HOST?subject=SUBJECT")
            );
        }
        if !matches!(url.path(), "" | "/") {
            return Err(Error::invalid("an address of NATS has no path")
                .with_hint("name the subject behind a question mark: nats://HOST?subject=SUBJECT"));
        }
        let Some(subject) = options.take("subject").filter(|subject| !subject.is_empty()) else {
            return Err(Error::invalid("the address names no subject").with_hint("add ?subject=SUBJECT"));
        };
        let subject = Template::parse(&subject)?;
        if let Some(fixed) = subject.fixed() {
            check_subject(fixed).map_err(Error::invalid)?;
        }
        let answer = options.answer()?;
        let login = match (url.username(), url.password(), options.take("credentials")) {
            ("", None, None) => Login::Nobody,
            ("", None, Some(file)) => Login::Credentials(file.into()),
            (token, None, None) => Login::Token(decoded(token)?),
            (user, Some(password), None) => {
                Login::User { user: decoded(user)?, password: decoded(password)? }
            }
            _ => {
                return Err(Error::invalid("the address has a user and credentials, too")
                    .with_hint("the file says who comes: leave the user out"));
            }
        };
        // The URL has a host, so neither call can fail. The client would use the escaped texts as they are.
        let _ = (url.set_username(""), url.set_password(None));
        let server = ServerAddr::from_url(url)
            .map_err(|error| Error::invalid("this is no address of NATS").with_source(error))?;
        Ok(Self { server, login, subject, answer })
    }
}

/// Publishes jobs to a stream.
pub(crate) struct Nats {
    address: Address,
    link: Link,
}

impl Nats {
    pub(crate) fn new(address: Address, tls: Tls) -> Self {
        Self { link: Link::new(address.clone(), tls.files), address }
    }

    async fn publish(&self, job: &JobRecord, id: &str) -> std::result::Result<(), Refusal> {
        let subject = self.address.subject.fill(job).map_err(Refusal::Never)?;
        check_subject(&subject).map_err(Refusal::Never)?;
        let headers = headers(job, id).map_err(Refusal::Never)?;
        let message = PublishMessage::build().headers(headers).payload(job.payload.bytes.clone().into());
        let line = self.link.line().await.map_err(|fault| Refusal::Away(fault.into_words()))?;
        let published = async { line.context().send_publish(subject.clone(), message).await?.await };
        let answer = self.address.answer.min(job.timeout / 2);
        let error = tokio::select! {
            published = timeout(answer, published) => match published {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => PublishError::new(PublishErrorKind::TimedOut),
            },
            why = line.refused(&subject) => return Err(Refusal::Refused(why)),
            () = line.lost() => return Err(Refusal::Away("the connection was lost".to_owned())),
        };
        if matches!(error.kind(), PublishErrorKind::TimedOut) {
            // The client never forgets answers that are pending on a connection.
            self.link.leave(&line).await;
            let said = line.said().map_or_else(String::new, |said| format!("; the server said: {said}"));
            return Err(Refusal::Away(format!("no stream confirmed within {answer:?}{said}")));
        }
        if line.is_lost() {
            return Err(Refusal::Away(error.to_string()));
        }
        if matches!(error.kind(), PublishErrorKind::StreamNotFound) && line.is_recovering() {
            let said =
                format!("no stream takes the subject {subject} yet, and the server came back a moment ago");
            return Err(Refusal::Away(said));
        }
        Err(refusal(&error, &subject))
    }

    async fn look(&self) -> Result<()> {
        let line = self.link.line().await.map_err(Fault::into_error)?;
        let Some(subject) = self.address.subject.fixed() else { return Ok(()) };
        let Err(error) = line.context().stream_by_subject(subject).await else { return Ok(()) };
        if matches!(error.kind(), GetStreamByNameErrorKind::NotFound) {
            return Err(Error::invalid(format!("no stream takes the subject {subject}"))
                .with_hint("add it to a stream's subjects first; punctual makes no streams there"));
        }
        let mut cause = error.source();
        while let Some(at) = cause {
            if let Some(said) = at.downcast_ref::<jetstream::Error>() {
                return Err(Error::invalid(format!("JetStream says: {said}")));
            }
            match at.downcast_ref::<RequestError>().map(RequestError::kind) {
                Some(RequestErrorKind::NoResponders) => {
                    return Err(Error::invalid("the server has no JetStream, or not for this account")
                        .with_hint("start nats-server with -js, and enable JetStream for the account"));
                }
                // A user that may publish need not be allowed to ask. The complaint is then about the question.
                Some(RequestErrorKind::TimedOut) if line.said().is_some() => return Ok(()),
                _ => cause = at.source(),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "JetStream does not answer").with_source(error))
    }
}

impl Sink for Nats {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.look())
    }

    fn send<'a>(
        &'a self,
        job: &'a JobRecord,
        id: &'a str,
    ) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        Box::pin(self.publish(job, id))
    }
}

/// Returns the headers of a job's message. Names and values are checked first, because the client panics at invalid
/// ones.
fn headers(job: &JobRecord, id: &str) -> std::result::Result<HeaderMap, String> {
    let value = |name: &str, value: &str| {
        HeaderValue::from_str(value)
            .map_err(|_| format!("its {name} has a line break, which NATS takes in no header"))
    };
    let mut headers = HeaderMap::new();
    let own = |name: &str| {
        !name.to_ascii_lowercase().starts_with(ORDERS) && !name.eq_ignore_ascii_case("content-type")
    };
    for (name, text) in fields::of(job).into_iter().filter(|(name, _)| own(name)) {
        let key = HeaderName::from_str(&name).map_err(|_| {
            format!("its header {name:?} has a name that NATS does not take: visible ASCII without a colon")
        })?;
        headers.insert(key, value(&format!("header {name:?}"), &text)?);
    }
    let content_type = value("content type", &job.payload.content_type)?;
    headers.insert(HeaderName::from_static("Content-Type"), content_type);
    headers.insert(NATS_MESSAGE_ID, value("id", id)?);
    Ok(headers)
}

/// Checks whether a job can be published under a subject; the error says why not.
fn check_subject(subject: &str) -> std::result::Result<(), String> {
    let what = if subject.split('.').any(str::is_empty) {
        "has an empty part between its dots"
    } else if subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
        "has a space or a control character"
    } else if subject.split('.').any(|part| ["*", ">"].contains(&part)) {
        "has a wildcard"
    } else if RESERVED.iter().any(|begin| subject.starts_with(begin)) {
        "is one of the server's own"
    } else {
        return Ok(());
    };
    Err(format!("the subject {subject:?} {what}"))
}

/// Returns what becomes of a job that was not acknowledged.
fn refusal(error: &PublishError, subject: &str) -> Refusal {
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            Refusal::Refused(format!("no stream takes the subject {subject}"))
        }
        PublishErrorKind::BrokenPipe => Refusal::Away("the connection was lost".to_owned()),
        PublishErrorKind::TimedOut | PublishErrorKind::MaxAckPending => Refusal::Away(error.to_string()),
        PublishErrorKind::MaxPayloadExceeded => Refusal::Refused(error.to_string()),
        _ => {
            let said = error.source().and_then(|cause| cause.downcast_ref::<jetstream::Error>());
            // A leader is being elected, or a resource is used up. No single message is at fault.
            if let Some(said) = said.filter(|said| said.code() == UNAVAILABLE) {
                return Refusal::Away(said.to_string());
            }
            Refusal::Refused(said.map_or_else(|| error.to_string(), ToString::to_string))
        }
    }
}

fn decoded(text: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(Into::into).map_err(|_| Error::invalid("the user or password of the address is not UTF-8"))
}
