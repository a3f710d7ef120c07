//! The addresses of targets.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use punctual::{
    Error, ErrorKind, Result,
    job::{did_you_mean, parse_duration},
};
use url::Url;

use crate::{
    forwarder::Forwarder,
    tls::{Files, Tls},
};

/// The longest address, in bytes.
const ADDRESS_BYTES_MAX: usize = 4 * 1024;

/// How long to wait for an answer (default).
const ANSWER_DEFAULT: Duration = Duration::from_secs(30);
/// The longest wait for an answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_mins(10);

/// The schemes of addresses.
const SCHEMES: [&str; 9] = ["amqp", "amqps", "nats", "tls", "redis", "rediss", "redis+unix", "http", "https"];

/// The target of a forwarder: a parsed and checked address, with its options.
///
/// It is not connected yet.
///
/// | address | target | defaults |
/// |---|---|---|
/// | `amqp://USER:PASSWORD@HOST:PORT/VHOST?exchange=E&routing_key=K` | RabbitMQ; `amqps` with TLS | `exchange`: the default exchange, whose routing key is the name of a queue |
/// | `nats://HOST:PORT?subject=S` | a stream of NATS JetStream; `tls` with TLS | |
/// | `redis://HOST:PORT/DB?stream=S&maxlen=N` | a Redis stream; `rediss` with TLS, `redis+unix` | `maxlen`: none |
/// | `https://HOST/PATH` | a webhook | |
///
/// Exchange, routing key, subject, stream and the address of a webhook are templates. They can contain `{kind}`,
/// `{queue}`, `{id}`, `{group}`, `{priority}`, `{attempt}`, `{header.NAME}` and `{tag.NAME}` of the job. `{tag.NAME}`
/// is the text after `NAME:` or `NAME=` in a tag. A job that lacks a value becomes dead, with the reason. Write
/// braces twice to get a brace. All targets except webhooks have the option `answer`: how long to wait for an answer
/// before the job is sent again (default: 30 s).
///
/// ```
/// use punctual_forward::Target;
///
/// let target = Target::parse("amqp://guest:secret@localhost/%2f?exchange=jobs&routing_key={kind}")?;
/// assert_eq!(target.shown(), "amqp://guest@localhost/%2f?exchange=jobs&routing_key={kind}");
/// let error = Target::parse("amqp://localhost?routing_key={knd}").unwrap_err();
/// assert_eq!(error.hint(), Some("did you mean {kind}?"));
/// # Ok::<(), punctual::Error>(())
/// ```
#[derive(Clone)]
pub struct Target {
    address: Address,
    shown: String,
    files: Files,
    #[cfg(feature = "webhook")]
    setup: crate::webhook::Setup,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // All other parts may be secret.
        f.debug_struct("Target").field("to", &self.shown).finish_non_exhaustive()
    }
}

/// The address in the form of each target.
#[derive(Clone)]
enum Address {
    #[cfg(feature = "amqp")]
    Amqp(crate::amqp::Address),
    #[cfg(feature = "nats")]
    Nats(crate::nats::Address),
    #[cfg(feature = "redis")]
    RedisStream(crate::redis_stream::Address),
    #[cfg(feature = "webhook")]
    Webhook(crate::webhook::Address),
}

impl Address {
    /// Refuses certificates that would not be used, or would be sent to unknown hosts.
    fn takes(&self, tls: &Tls) -> Result<()> {
        let without_tls = |instead: &str| {
            Err(Error::invalid("certificates are for connections with TLS")
                .with_hint(format!("write {instead}")))
        };
        match self {
            #[cfg(feature = "amqp")]
            Self::Amqp(address) if !address.is_tls() => without_tls("amqps://HOST"),
            #[cfg(feature = "redis")]
            Self::RedisStream(_) => Err(Error::invalid("certificates are for webhooks, RabbitMQ and NATS")
                .with_hint("leave them out")),
            #[cfg(feature = "webhook")]
            Self::Webhook(crate::webhook::Address::Own(_)) if tls.client.is_some() => {
                Err(Error::invalid("a client certificate would go to every receiver that a job names")
                    .with_hint("sign the requests, with a secret for each receiver"))
            }
            #[cfg(feature = "webhook")]
            Self::Webhook(crate::webhook::Address::OneHost { example, .. })
                if example.scheme() != "https" =>
            {
                without_tls("https://HOST/PATH")
            }
            _ => Ok(()),
        }
    }
}

impl Target {
    /// Parses an address, without any connection.
    ///
    /// # Errors
    /// `Invalid` for an invalid address, an unknown option, or a template with an unknown field. `Unsupported` if
    /// this build does not have the target.
    pub fn parse(address: &str) -> Result<Self> {
        if ADDRESS_BYTES_MAX < address.len() {
            return Err(Error::invalid(format!("an address has at most {ADDRESS_BYTES_MAX} bytes")));
        }
        let scheme = address.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        let (address, shown) = match scheme.as_str() {
            #[cfg(feature = "webhook")]
            "http" | "https" | "webhook" => {
                let address = crate::webhook::Address::parse(address)?;
                let shown = address.shown();
                (Address::Webhook(address), shown)
            }
            _ => Self::of_url(&scheme, address)?,
        };
        Ok(Self {
            address,
            shown,
            files: Files::default(),
            #[cfg(feature = "webhook")]
            setup: crate::webhook::Setup::default(),
        })
    }

    fn of_url(scheme: &str, text: &str) -> Result<(Address, String)> {
        // It may contain a secret, so errors never show all of it.
        let mut url = Url::parse(text).map_err(|error| {
            let near = did_you_mean(scheme, SCHEMES);
            let hint = near.map_or_else(
                || "write amqp://, nats://, redis:// or https:// and a host".to_owned(),
                |near| format!("did you mean {near}://?"),
            );
            Error::invalid("this is no address to forward to").with_hint(hint).with_source(error)
        })?;
        let mut options = Options::of(&url)?;
        let shown = shown(&url);
        url.set_query(None);
        let address = match scheme {
            #[cfg(feature = "amqp")]
            "amqp" | "amqps" => Address::Amqp(crate::amqp::Address::parse(url, &mut options)?),
            #[cfg(feature = "nats")]
            "nats" | "tls" => Address::Nats(crate::nats::Address::parse(url, &mut options)?),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" => {
                Address::RedisStream(crate::redis_stream::Address::parse(url, &mut options)?)
            }
            _ if SCHEMES.contains(&scheme) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("this build does not forward to {scheme}://"),
                )
                .with_hint("build punctual-forward with the feature for it"));
            }
            _ => {
                let hint = did_you_mean(scheme, SCHEMES)
                    .map_or_else(|| SCHEMES.join("://, ") + "://", |near| format!("did you mean {near}://?"));
                return Err(Error::invalid(format!("jobs can't be forwarded to {scheme}://")).with_hint(hint));
            }
        };
        options.are_all_known()?;
        Ok((address, shown))
    }

    /// Signs requests to a webhook by the Standard Webhooks format.
    ///
    /// A secret is `whsec_` and a key of 24 to 64 bytes in base64. While a key is replaced, give two secrets
    /// separated by a space, the current one first: each request then has a signature of both.
    ///
    /// Not allowed if each job has its own address: a receiver that shares its key with others could sign for them.
    #[cfg(feature = "webhook")]
    #[must_use]
    pub fn signed_with(mut self, secret: impl Into<String>) -> Self {
        self.setup.secrets = Some(crate::webhook::Place::Text(secret.into()));
        self
    }

    /// Signs requests with a secret from a file.
    ///
    /// The name of the file can have fields of the job: `/run/secrets/{header.endpoint}`. The file is read for each
    /// request. Values of fields must consist of ASCII letters, digits, `_`, `-` and `.`, and must not begin with a
    /// dot.
    #[cfg(feature = "webhook")]
    #[must_use]
    pub fn signed_by_file(mut self, name: impl Into<String>) -> Self {
        self.setup.secrets = Some(crate::webhook::Place::File(name.into()));
        self
    }

    /// Signs requests with a secret from an environment variable.
    ///
    /// Its name can have fields of the job: `WEBHOOK_SECRET_{header.endpoint}`.
    #[cfg(feature = "webhook")]
    #[must_use]
    pub fn signed_by_env(mut self, name: impl Into<String>) -> Self {
        self.setup.secrets = Some(crate::webhook::Place::Env(name.into()));
        self
    }

    /// Adds a header to each request to a webhook. Its value is never shown.
    #[cfg(feature = "webhook")]
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.setup.headers.push((name.into(), value.into()));
        self
    }

    /// Allows a webhook in a private network, on this machine, or without TLS.
    ///
    /// Not for addresses that customers give.
    #[cfg(feature = "webhook")]
    #[must_use]
    pub const fn allow_private(mut self) -> Self {
        self.setup.allows_private = true;
        self
    }

    /// Trusts the authorities in this file (PEM).
    ///
    /// They are trusted in addition to those of the system; for NATS, instead of them.
    /// It applies to webhooks, RabbitMQ and NATS.
    #[must_use]
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.files.ca = Some(file.into());
        self
    }

    /// Uses a client certificate.
    ///
    /// `cert` is a file with it and its chain, and `key` a file with its unencrypted key (both PEM).
    /// It applies to webhooks with one host, RabbitMQ and NATS, over TLS.
    #[must_use]
    pub fn client_certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.files.client = Some((cert.into(), key.into()));
        self
    }

    /// Returns the address without its secrets, for people.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Makes a forwarder to this target.
    ///
    /// It connects with the first job, or at [`Forwarder::check`].
    ///
    /// # Errors
    /// `Invalid` for a secret that is malformed or given for a target other than a webhook, for a webhook with a
    /// private address, and for certificates that cannot be read or used with this address.
    pub fn forwarder(self) -> Result<Forwarder> {
        // Two cryptography providers in one process would be ambiguous, so the first one installed stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        #[cfg(feature = "webhook")]
        if !matches!(self.address, Address::Webhook(_)) && !self.setup.is_empty() {
            return Err(Error::invalid("secrets, headers and private addresses are for webhooks only")
                .with_hint("leave them out, or forward to https://…"));
        }
        let tls = Tls::load(self.files)?;
        if !tls.is_empty() {
            self.address.takes(&tls)?;
        }
        let (address, shown) = (self.address, self.shown);
        Ok(match address {
            #[cfg(feature = "amqp")]
            Address::Amqp(address) => Forwarder::new(Box::new(crate::amqp::Amqp::new(address, tls)), shown),
            #[cfg(feature = "nats")]
            Address::Nats(address) => Forwarder::new(Box::new(crate::nats::Nats::new(address, tls)), shown),
            #[cfg(feature = "redis")]
            Address::RedisStream(address) => {
                Forwarder::new(Box::new(crate::redis_stream::RedisStream::new(address)), shown)
            }
            #[cfg(feature = "webhook")]
            Address::Webhook(address) => {
                let webhook = crate::webhook::Webhook::new(address, self.setup, &tls)?;
                Forwarder::new(Box::new(webhook), shown)
            }
        })
    }
}

/// Returns an address without its password.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // NATS takes a name without a password for a token. Neither call can fail for a URL with a host, and one without
    // has no user.
    if matches!(url.scheme(), "nats" | "tls") && url.password().is_none() {
        let _ = url.set_username("");
    }
    let _ = url.set_password(None);
    let options = url.query().map(|options| {
        let plain = options.split('&').filter(|option| !option.starts_with("pass="));
        plain.collect::<Vec<_>>().join("&")
    });
    url.set_query(options.as_deref());
    url.to_string()
}

/// The options of an address.
pub(crate) struct Options {
    given: BTreeMap<String, String>,
    asked: Vec<&'static str>,
}

impl Options {
    fn of(url: &Url) -> Result<Self> {
        let mut given = BTreeMap::new();
        // A + stands for itself, as in the rest of an address. As in a form, it would be a space.
        let options = url.query().unwrap_or_default().replace('+', "%2B");
        for (name, value) in url::form_urlencoded::parse(options.as_bytes()) {
            if given.insert(name.to_string(), value.into_owned()).is_some() {
                return Err(Error::invalid(format!("the address has the option {name} twice")));
            }
        }
        Ok(Self { given, asked: Vec::new() })
    }

    /// Takes the value of an option, if it was given.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<String> {
        self.asked.push(name);
        self.given.remove(name)
    }

    /// Takes the option `answer`: how long to wait for the target's answer to a job.
    pub(crate) fn answer(&mut self) -> Result<Duration> {
        let Some(text) = self.take("answer") else { return Ok(ANSWER_DEFAULT) };
        let answer = parse_duration(&text)?;
        if answer.is_zero() || ANSWER_MAX < answer {
            return Err(Error::invalid(format!(
                "answer={text} is not more than 0 and at most {ANSWER_MAX:?}"
            )));
        }
        Ok(answer)
    }

    fn are_all_known(&self) -> Result<()> {
        let Some(name) = self.given.keys().next() else { return Ok(()) };
        let hint = did_you_mean(name, self.asked.iter().copied()).map_or_else(
            || format!("it knows {}", self.asked.join(", ")),
            |near| format!("did you mean {near}?"),
        );
        Err(Error::invalid(format!("the address has no option {name}")).with_hint(hint))
    }
}

#[cfg(all(test, feature = "amqp", feature = "nats", feature = "redis", feature = "webhook"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_target_is_refused_with_what_to_try() {
        for (address, hint) in [
            ("amqp://h?routing_key=q&routing_kay=q", "did you mean routing_key?"),
            ("nats://h?subjct=s", "add ?subject=SUBJECT"),
            ("nats://h?subject=s&answr=1s", "did you mean answer?"),
            ("redis://h?stream=s&maxln=1", "did you mean maxlen?"),
            ("redis://h?stream=s&maxlen=0", "write a whole number, such as maxlen=100000"),
            ("redis://h?stream={knd}", "did you mean {kind}?"),
            ("nats://h?subject=s&answer=30", "write 500ms, 90s, 10m, 1h30m or 2d"),
            ("amqp://h?routing_key=q&x=1", "it knows exchange, routing_key, answer"),
            ("natz://h?subject=s", "did you mean nats://?"),
            ("ampq://h", "did you mean amqp://?"),
            ("nats://?subject=s", "write nats://HOST?subject=SUBJECT"),
            (
                "nats://h/path?subject=s",
                "name the subject behind a question mark: nats://HOST?subject=SUBJECT",
            ),
            ("nats://u:p@h?subject=s&credentials=f", "the file says who comes: leave the user out"),
            ("no address", "write amqp://, nats://, redis:// or https:// and a host"),
            ("", "write amqp://, nats://, redis:// or https:// and a host"),
        ] {
            let error = Target::parse(address).unwrap_err();
            assert_eq!((error.kind(), error.hint()), (ErrorKind::Invalid, Some(hint)), "{address}: {error}");
        }
        for address in [
            "nats://h?subject=a..b",
            "nats://h?subject=a.*",
            "nats://h?subject=$JS.API.INFO",
            "nats://h?subject=s&subject=s",
            "nats://h?subject=s&answer=0s",
            "nats://h?subject=s&answer=1d",
            "redis://h?stream={kind",
            "https://{header.host}/",
        ] {
            assert_eq!(Target::parse(address).unwrap_err().kind(), ErrorKind::Invalid, "{address}");
        }
    }

    #[test]
    fn a_plus_of_an_option_is_a_plus() {
        let url = Url::parse("redis+unix:///s?stream=a+b&pass=c%2Bd+e%20f").unwrap();
        let mut options = Options::of(&url).unwrap();
        assert_eq!(options.take("stream").as_deref(), Some("a+b"));
        assert_eq!(options.take("pass").as_deref(), Some("c+d+e f"));
    }

    #[test]
    fn a_secret_is_for_webhooks() {
        for address in ["amqp://h?routing_key=q", "nats://h?subject=s", "redis://h?stream=s"] {
            let target = Target::parse(address).unwrap();
            for odd in [target.clone().signed_with("whsec_x"), target.clone().allow_private()] {
                assert_eq!(odd.forwarder().unwrap_err().kind(), ErrorKind::Invalid, "{address}");
            }
            assert!(target.forwarder().is_ok(), "{address}");
        }
        let bad = Target::parse("https://example.com/").unwrap().signed_with("secret");
        assert_eq!(bad.forwarder().unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn what_is_secret_is_not_shown() {
        for (address, shown) in [
            ("nats://u:secret@h?subject={kind}", "nats://u@h?subject={kind}"),
            ("nats://secret@h?subject=s", "nats://h?subject=s"),
            ("amqp://u:secret@h/?routing_key=q", "amqp://u@h/?routing_key=q"),
            ("redis://u:secret@h/3?stream=s", "redis://u@h/3?stream=s"),
            ("redis+unix:///s?stream=s&user=u&pass=secret", "redis+unix:///s?stream=s&user=u"),
            ("https://example.com/hooks/secret?key=secret", "https://example.com/…"),
        ] {
            let mut target = Target::parse(address).unwrap();
            assert_eq!(target.shown(), shown);
            target = target.signed_with("secret").header("a", "secret");
            assert!(!format!("{target:?}").contains("secret"), "{target:?}");
        }
    }
}
