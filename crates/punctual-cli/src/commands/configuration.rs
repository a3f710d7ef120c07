//! `punctual config show`: shows the configuration, and where each value is set. Secrets are not printed.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::{
    args::Globals,
    errors::Result,
    output::{Out, clean, json},
};

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  punctual config show
  punctual config show --config /etc/punctual/punctual.toml")]
pub(crate) enum Configuration {
    /// Show the store, the time zone and the forwarded queues, and where the store is set.
    #[command(after_help = "\
Passwords are not printed.

Examples:
  punctual config show
  punctual config show -o json")]
    Show,
    /// Check the configuration file without opening the store.
    #[command(after_help = "\
Options in the sections are those of the commands: punctual serve --help

Examples:
  punctual config check
  punctual config check --config punctual.toml")]
    Check,
}

/// The same as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    store: String,
    store_origin: String,
    tz: &'a str,
    /// The file that was read.
    file: Option<String>,
    /// Queues that it forwards.
    forward: Vec<&'a str>,
}

pub(super) fn run(globals: &Globals, command: &Configuration) -> Result {
    let found = globals.configured.as_ref();
    if matches!(command, Configuration::Check) {
        // Each command reads the file before anything else.
        let text = found.map_or_else(
            || "there is no configuration file".to_owned(),
            |found| format!("{} is valid", found.file.display()),
        );
        return Ok(writeln!(io::stdout(), "{}", clean(&text))?);
    }
    let shown = Shown {
        store: masked(globals.store()),
        store_origin: globals.store_origin(),
        tz: &globals.tz,
        file: found.map(|found| found.file.display().to_string()),
        forward: found
            .iter()
            .flat_map(|found| &found.config.forward)
            .map(|route| route.from.as_str())
            .collect(),
    };
    let mut out = Out::new(io::stdout());
    if globals.json() {
        json(&mut out, &shown)?;
        return Ok(out.flush()?);
    }
    writeln!(out, "store    {}  ({})", clean(&shown.store), clean(&shown.store_origin))?;
    writeln!(out, "tz       {}", clean(shown.tz))?;
    writeln!(out, "file     {}", clean(shown.file.as_deref().unwrap_or("none")))?;
    if !shown.forward.is_empty() {
        writeln!(out, "forward  {}", clean(&shown.forward.join(", ")))?;
    }
    Ok(out.flush()?)
}

/// An address without its password.
fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        // A mistyped address may have a password, a path may have an @.
        let login = url.rsplit_once('@').filter(|_| !url.starts_with("sqlite:"));
        return without_pass(&login.map_or_else(|| url.to_owned(), |(_, host)| format!("***@{host}")));
    };
    let Some((login, host)) = rest.rsplit_once('@') else { return without_pass(url) };
    // Without a colon it may be a token.
    let user = login.split_once(':').map_or("***", |(user, _)| user);
    without_pass(&format!("{scheme}://{user}:***@{host}"))
}

/// The same without the option that holds it where there is no host, as in the address of a socket.
fn without_pass(url: &str) -> String {
    let Some((before, options)) = url.split_once('?') else { return url.to_owned() };
    let options =
        options.split('&').map(|option| if option.starts_with("pass=") { "pass=***" } else { option });
    format!("{before}?{}", options.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_printed() {
        for (url, shown) in [
            ("sqlite:punctual.db", "sqlite:punctual.db"),
            ("redis://localhost", "redis://localhost"),
            ("redis://:secret@h:1/2?prefix=a", "redis://:***@h:1/2?prefix=a"),
            ("rediss://ana:se:c@ret@h/", "rediss://ana:***@h/"),
            ("redis//ana:secret@h/0", "***@h/0"),
            ("redis:/:secret@h", "***@h"),
            ("redis//a:b@h?pass=secret", "***@h?pass=***"),
            ("https://secret@h", "https://***:***@h"),
            ("sqlite:/data/a@b.db", "sqlite:/data/a@b.db"),
            ("redis+unix:///s?user=u&pass=secret", "redis+unix:///s?user=u&pass=***"),
        ] {
            assert_eq!(masked(url), shown);
        }
    }
}
