//! The configuration file, for settings that are the same for each call.

pub(crate) mod section;

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::errors::{Failure, Result};

/// Largest file, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;
/// Most tables `[[forward]]`.
const FORWARDS_MAX: usize = 64;
/// The file's name in the current folder.
const HERE: &str = "punctual.toml";

/// What the file says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Where the jobs live, unless the command line or the environment say it.
    pub(crate) store: Option<String>,
    /// What is handed over to other systems.
    #[serde(default)]
    pub(crate) forward: Vec<Forward>,
    /// Options of `punctual serve`.
    #[serde(default)]
    serve: toml::Table,
    /// Options of `punctual work`.
    #[serde(default)]
    work: toml::Table,
    /// Where traces go.
    #[serde(default)]
    #[cfg_attr(
        not(feature = "otel"),
        allow(dead_code, reason = "a build without the feature reads the file all the same")
    )]
    pub(crate) telemetry: Telemetry,
    /// Options of all commands: `tz`, `color`, `log_format`.
    #[serde(skip)]
    globals: toml::Table,
    #[serde(rename = "tz", default)]
    zone: Option<String>,
    #[serde(default)]
    color: Option<String>,
    #[serde(default)]
    log_format: Option<String>,
}

/// Where traces go, and how they begin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(
    not(feature = "otel"),
    allow(dead_code, reason = "a build without the feature reads the file all the same")
)]
pub(crate) struct Telemetry {
    /// The address of a collector, unless the environment names one.
    pub(crate) otlp_endpoint: Option<String>,
    /// Whether the first run of a job continues the trace of its producer.
    #[serde(default)]
    pub(crate) continue_trace: bool,
}

/// A queue whose jobs are handed over.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(
    not(feature = "forward"),
    expect(dead_code, reason = "a build without the command reads the file all the same")
)]
pub(crate) struct Forward {
    /// The queue.
    pub(crate) from: String,
    /// The address, as `punctual forward --to` takes it.
    pub(crate) to: Option<String>,
    /// A file with the address, which may hold a password.
    pub(crate) to_file: Option<PathBuf>,
    /// Jobs on their way at once.
    pub(crate) slots: Option<usize>,
    /// A file with the secrets that a webhook is signed with; its name may have fields of the job in it.
    pub(crate) secret_file: Option<String>,
    /// The same, a variable of the environment.
    pub(crate) secret_env: Option<String>,
    /// Headers of each request to a webhook.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// A file with authorities that are trusted beside those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// A file with a client certificate.
    pub(crate) cert_file: Option<PathBuf>,
    /// A file with its key.
    pub(crate) key_file: Option<PathBuf>,
    /// Whether a webhook may be in a private network.
    #[serde(default)]
    pub(crate) allow_private: bool,
}

/// A configuration, and the file that it is from.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) file: PathBuf,
    pub(crate) config: Config,
}

/// Makes the error of `forward` without `--to` and without a configuration file.
#[cfg(feature = "forward")]
pub(crate) fn nowhere() -> Failure {
    Failure::invalid("there is no configuration file")
        .why(format!("there is no ./{HERE}, ~/.config/punctual/config.toml or /etc/punctual/punctual.toml"))
        .hint(
            "name a queue and an address (punctual forward -q QUEUE --to ADDRESS), or a file (--config FILE)",
        )
}

impl Config {
    /// Reads a file, else the first there is of `./punctual.toml`, `$XDG_CONFIG_HOME/punctual/config.toml` and
    /// `/etc/punctual/punctual.toml`; `None` where there is none.
    pub(crate) fn find(file: Option<&Path>) -> Result<Option<Found>> {
        if let Some(file) = file {
            let config = Self::parse(file, &text(file)?)?;
            return Ok(Some(Found { file: file.to_owned(), config }));
        }
        let home = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".config")));
        let places = [
            Some(PathBuf::from(HERE)),
            home.map(|home| home.join("punctual/config.toml")),
            Some(PathBuf::from("/etc/punctual/punctual.toml")),
        ];
        let Some(file) = places.into_iter().flatten().find(|file| file.exists()) else { return Ok(None) };
        if !is_trusted(&file) {
            let message = format!("{} belongs to another user", file.display());
            return Err(Failure::invalid(message)
                .why("a configuration file can name commands that punctual runs, and a server that it sends a token to")
                .hint(format!("read it, then name it: --config {}", file.display())));
        }
        let config = Self::parse(&file, &text(&file)?)?;
        Ok(Some(Found { file, config }))
    }

    fn parse(file: &Path, text: &str) -> Result<Self> {
        let shown = file.display();
        let wrong = |why: String| Failure::invalid(format!("{shown} is not a valid configuration")).why(why);
        let reader = toml::Deserializer::parse(text)
            .map_err(|error| wrong(format!("{}{}", place(text, &error), error.message())))?;
        let mut config: Self = serde_path_to_error::deserialize(reader).map_err(|error| {
            wrong(format!("{}: {}", error.path(), without_texts(error.inner().message())))
        })?;
        if FORWARDS_MAX < config.forward.len() {
            return Err(wrong(format!("the file has more than {FORWARDS_MAX} [[forward]] tables")));
        }
        let globals = [("tz", &config.zone), ("color", &config.color), ("log_format", &config.log_format)];
        let globals = globals
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), toml::Value::String(value.clone()?))));
        config.globals = globals.collect();
        Ok(config)
    }
}

/// Returns the line and column of an error, not the line itself, which can hold a secret.
fn place(text: &str, error: &toml::de::Error) -> String {
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return String::new() };
    let line = 1 + before.matches('\n').count();
    let column = 1 + before.chars().rev().take_while(|c| *c != '\n').count();
    format!("line {line}, column {column}: ")
}

/// A message of a parser without the text that it found: that may be a secret.
fn without_texts(message: &str) -> String {
    const TEXT: &str = "string \"";
    match (message.split_once(TEXT), message.rsplit_once('"')) {
        (Some((before, _)), Some((_, after))) => format!("{before}text{after}"),
        _ => message.to_owned(),
    }
}

/// The whole of a file that holds an address or a secret, without the end of its line.
#[cfg(any(feature = "forward", feature = "import"))]
pub(crate) fn secret(file: &Path) -> Result<String> {
    Ok(text(file)?.trim_end_matches(['\r', '\n']).to_owned())
}

/// Whether a file that nobody named is this user's or root's: it may be in a folder of anybody.
#[cfg(unix)]
fn is_trusted(file: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // A file that cannot be looked at cannot be read either, which is told later.
    file.metadata().map_or(true, |about| [0, rustix::process::geteuid().as_raw()].contains(&about.uid()))
}

#[cfg(not(unix))]
fn is_trusted(_: &Path) -> bool {
    true
}

fn text(file: &Path) -> Result<String> {
    let shown = file.display();
    let read = fs::metadata(file).and_then(|about| {
        if BYTES_MAX < about.len() {
            return Err(io::Error::other(format!("the file has more than {BYTES_MAX} bytes")));
        }
        fs::read_to_string(file)
    });
    read.map_err(|error| Failure::invalid(format!("could not read {shown}")).why(error.to_string()))
}
