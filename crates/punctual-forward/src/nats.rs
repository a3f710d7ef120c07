//! NATS JetStream, by publishing into whichever stream takes the subject.
//!
//! A job is handed over when the stream acknowledged it: by then the stream has it as safe as it keeps anything. Copies that
//! carry the same `Nats-Msg-Id` within the stream's window (two minutes, if its maker did not say otherwise) are one message
//! there: what is published again since an acknowledgement was lost is not delivered twice.

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

/// What JetStream says in HTTP's words when it can't do anything now.
const UNAVAILABLE: usize = 503;
/// What subjects of the server itself, and of answers, begin with. A job that could choose them could give orders: the
/// subject `$JS.API.STREAM.DELETE.jobs` deletes a stream.
const RESERVED: [&str; 2] = ["$", "_INBOX."];
/// What headers begin with that the server obeys: `Nats-Rollup` empties a stream.
const ORDERS: &str = "nats-";

/// A server, and the subject of jobs there.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    server: ServerAddr,
    login: Login,
    subject: Template,
    answer: Duration,
}

/// As whom to come.
#[derive(Clone)]
enum Login {
    Nobody,
    User {
        user: String,
        password: String,
    },
    Token(String),
    /// A file with a token and the key to it.
    Credentials(PathBuf),
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login")
    }
}

impl Address {
    /// Of an address without its options, and those.
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
        // It has a host, so that neither can fail. The client would take both as they are, with their escapes.
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
            // The client never forgets whom it owes an answer on a connection.
            self.link.leave(&line).await;
            let said = line.said().map_or_else(String::new, |said| format!("; the server said: {said}"));
            return Err(Refusal::Away(format!("no stream confirmed within {answer:?}{said}")));
        }
        if line.is_lost() {
            return Err(Refusal::Away(error.to_string()));
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
                // Who may publish need not be allowed to ask. What is said is then said of the question.
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

/// What goes out beside the payload. Names and values are looked at first, since the client panics at bad ones.
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

/// Whether a job can be published under a subject; in words, why not.
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

/// What becomes of a job that was not acknowledged.
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
            // A leader is being elected, or something has run out: of nobody's messages in particular.
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
