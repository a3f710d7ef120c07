//! The secrets with which webhooks are signed.
//!
//! [Standard Webhooks](https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md)
//! requires a separate key for each endpoint, because a receiver that has another one's key can forge its messages.
//! So if each job has its own address, one secret for all is refused. Instead the secret is found by a template, in a
//! file or an environment variable. Both are read for each request, so a secret can be replaced while the forwarder
//! runs.
//!
//! While a key is replaced there are two secrets, and each request has a signature of both.

use std::{env, fs::File, io::Read as _};

use punctual::{Error, JobRecord, Result};

use super::sign::Secret;
use crate::{sink::Refusal, template::Template};

/// The keys that sign a request at once: the current one, and the one before.
const KEYS_MAX: usize = 2;
/// The largest file with secrets, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024;

/// Where the secrets are, as configured.
#[derive(Clone)]
pub(crate) enum Place {
    /// The secrets themselves.
    Text(String),
    /// A file, whose name can have fields of the job.
    File(String),
    /// An environment variable, whose name can have fields of the job.
    Env(String),
}

/// The secrets with which requests are signed.
pub(super) enum Secrets {
    /// Requests are not signed.
    None,
    Fixed(Keys),
    File(Template),
    Env(Template),
}

/// The secrets of one receiver: one, or two during a replacement.
pub(super) struct Keys(Vec<Secret>);

impl Keys {
    /// Parses one or two secrets, separated by spaces or line ends.
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

    /// Returns the signatures of a request, separated by spaces.
    pub(super) fn sign(&self, id: &str, at_s: u64, body: &[u8]) -> String {
        self.0.iter().map(|key| key.sign(id, at_s, body)).collect::<Vec<_>>().join(" ")
    }
}

impl Secrets {
    /// Makes the secrets of a webhook. `is_one_host`: all jobs go to the same receiver.
    ///
    /// # Errors
    /// `Invalid` for a malformed secret, one that cannot be read, or one secret for many receivers.
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
        // A secret that is the same for all jobs is checked now.
        match (&secrets, fixed) {
            (Self::File(_), Some(name)) => _ = of_file(name).map_err(Error::invalid)?,
            (Self::Env(_), Some(name)) => _ = of_env(name).map_err(Error::invalid)?,
            _ => {}
        }
        Ok(secrets)
    }

    /// Returns whether requests are signed.
    pub(super) const fn are_there(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Returns the signatures of a job's request, if requests are signed.
    ///
    /// # Errors
    /// Never forwarded: a job that names no secret. Refused for now: a job whose secret cannot be read. Neither is
    /// sent.
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

/// Returns the name for a job. Values can come from customers, so none may lead to another file or variable.
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
