//! Where the secrets come from that webhooks are signed with.
//!
//! [Standard Webhooks](https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md) asks for a key of
//! its own for each endpoint. A receiver that has the key of another one can forge what that one gets. So where each job brings its own
//! address, one secret for all of them is refused: the secret is found by a template, in a file or in a variable of the environment.
//! Both are read for each request, so that a secret can be replaced while the forwarder runs.
//!
//! While a key is being replaced there are two of them, and each request has a signature of both.

use std::{env, fs::File, io::Read as _};

use punctual::{Error, JobRecord, Result};

use super::sign::Secret;
use crate::{sink::Refusal, template::Template};

/// Keys that a request is signed with at once: the current one, and the one before.
const KEYS_MAX: usize = 2;
/// Bytes of a file with secrets.
const FILE_BYTES_MAX: u64 = 4 * 1024;

/// Where secrets are, as it was said.
#[derive(Clone)]
pub(crate) enum Place {
    /// Here they are.
    Text(String),
    /// In this file, which may have fields of the job in its name.
    File(String),
    /// In this variable of the environment, likewise.
    Env(String),
}

/// The secrets that requests are signed with.
pub(super) enum Secrets {
    /// They are not signed.
    None,
    Fixed(Keys),
    File(Template),
    Env(Template),
}

/// The secrets of one receiver: one, or two while one replaces the other.
pub(super) struct Keys(Vec<Secret>);

impl Keys {
    /// Reads one or two secrets with spaces or line ends between them.
    ///
    /// # Errors
    /// `Invalid`, without the secrets.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let keys: Vec<Secret> = text.split_whitespace().map(Secret::parse).collect::<Result<_>>()?;
        if keys.is_empty() || KEYS_MAX < keys.len() {
            return Err(Error::invalid(format!("there are {} secrets, not 1 or {KEYS_MAX}", keys.len()))
                .with_hint(
                    "write the current secret, and below it the one before as long as it is replaced",
                ));
        }
        Ok(Self(keys))
    }

    /// The signatures of a request, with spaces between them.
    pub(super) fn sign(&self, id: &str, at_s: u64, body: &[u8]) -> String {
        self.0.iter().map(|key| key.sign(id, at_s, body)).collect::<Vec<_>>().join(" ")
    }
}

impl Secrets {
    /// `is_one_host`: all jobs go to the same receiver.
    ///
    /// # Errors
    /// `Invalid` for what is no secret, for one that can't be read, and for one secret for many receivers.
    pub(super) fn new(place: Option<Place>, is_one_host: bool) -> Result<Self> {
        let Some(place) = place else { return Ok(Self::None) };
        let secrets = match &place {
            Place::Text(text) => Self::Fixed(Keys::parse(text)?),
            Place::File(name) => Self::File(Template::parse(name)?),
            Place::Env(name) => Self::Env(Template::parse(name)?),
        };
        let fixed = match &secrets {
            Self::None | Self::Fixed(_) => Some(""),
            Self::File(name) | Self::Env(name) => name.fixed(),
        };
        if fixed.is_some() && !is_one_host {
            return Err(Error::invalid("one secret for all receivers lets each of them sign for the others")
                .with_hint("name one for each: --secret-file '/run/secrets/webhooks/{header.endpoint}'"));
        }
        // What is the same for all jobs can be known now.
        match (&secrets, fixed) {
            (Self::File(_), Some(name)) => _ = of_file(name).map_err(Error::invalid)?,
            (Self::Env(_), Some(name)) => _ = of_env(name).map_err(Error::invalid)?,
            _ => {}
        }
        Ok(secrets)
    }

    /// Whether requests are signed.
    pub(super) const fn are_there(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// The signatures of a job's request, if requests are signed.
    ///
    /// # Errors
    /// A job that names no secret is never signed; one whose secret can't be read now may be later. Neither is sent.
    pub(super) async fn sign(
        &self,
        job: &JobRecord,
        id: &str,
        at_s: u64,
    ) -> std::result::Result<Option<String>, Refusal> {
        let body = &job.payload.bytes;
        let unreadable = |why: String| Refusal::Refused(format!("it can't be signed: {why}"));
        Ok(Some(match self {
            Self::None => return Ok(None),
            Self::Fixed(keys) => keys.sign(id, at_s, body),
            Self::File(name) => {
                let name = filled(name, job)?;
                let read = tokio::task::spawn_blocking(move || of_file(&name)).await;
                let keys = read.unwrap_or_else(|error| Err(error.to_string())).map_err(unreadable)?;
                keys.sign(id, at_s, body)
            }
            Self::Env(name) => of_env(&filled(name, job)?).map_err(unreadable)?.sign(id, at_s, body),
        }))
    }
}

/// A name for a job. The values of its fields may come from customers: none of them leads anywhere else.
fn filled(name: &Template, job: &JobRecord) -> std::result::Result<String, Refusal> {
    let odd = std::cell::RefCell::new(None);
    let filled = name.fill_with(job, |value, _| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if value.is_empty() || value.starts_with('.') || !value.chars().all(is_plain) {
            odd.replace(Some(value.to_owned()));
        }
        value.to_owned()
    });
    let filled = filled.map_err(|lacks| Refusal::Never(format!("it names no secret: {lacks}")))?;
    match odd.into_inner() {
        Some(odd) => Err(Refusal::Never(format!("{odd:?} is no part of the name of a secret"))),
        None => Ok(filled),
    }
}

fn of_file(name: &str) -> std::result::Result<Keys, String> {
    let mut text = String::new();
    let read = File::open(name).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| format!("could not read {name}: {error}"))?;
    Keys::parse(&text).map_err(|error| format!("{name}: {error}"))
}

fn of_env(name: &str) -> std::result::Result<Keys, String> {
    let text = env::var(name).map_err(|_| format!("the environment has no {name}"))?;
    Keys::parse(&text).map_err(|error| format!("{name}: {error}"))
}
