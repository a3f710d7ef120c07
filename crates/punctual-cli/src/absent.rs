//! Commands that this build does not have. Each is a cargo feature. The command line knows them all the same, so that a call of one
//! says what to install.

use crate::{args::Command, errors::Failure};

/// The arguments of a command that is not in this build: any.
#[cfg(any(test, not(all(feature = "forward", feature = "import", feature = "man", feature = "serve"))))]
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Absent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _words: Vec<std::ffi::OsString>,
}

/// Returns the name of a command that is not in this build, and the feature that it needs; `None` if it is in this build.
#[cfg_attr(
    all(feature = "forward", feature = "import", feature = "man", feature = "serve"),
    expect(unused_variables, reason = "every command is in this build")
)]
pub(crate) const fn feature(command: &Command) -> Option<(&'static str, &'static str)> {
    #[cfg(not(feature = "forward"))]
    if let Command::Forward(_) = command {
        return Some(("forward", "forward"));
    }
    #[cfg(not(feature = "import"))]
    if let Command::Import(_) = command {
        return Some(("import", "import"));
    }
    #[cfg(not(feature = "man"))]
    if let Command::Man(_) = command {
        return Some(("man", "man"));
    }
    #[cfg(not(feature = "serve"))]
    if let Command::Token(_) = command {
        return Some(("token", "serve"));
    }
    #[cfg(not(feature = "serve"))]
    if let Command::Serve(_) = command {
        return Some(("serve", "serve"));
    }
    None
}

/// The error of a command whose feature is not in this build.
pub(crate) fn failure((command, feature): (&str, &str)) -> Failure {
    failure_of(&format!("command {command}"), feature)
}

/// The error of a command or an option whose feature is not in this build.
pub(crate) fn failure_of(what: &str, feature: &str) -> Failure {
    Failure::unsupported(format!("this build of punctual does not have the {what}"))
        .why(format!("it was built without the cargo feature `{feature}`"))
        .hint(format!(
            "in a clone: cargo install --locked --path crates/punctual-cli --features {feature}    or --features full: every \
             command and option"
        ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[arg(long, global = true)]
        store: Option<String>,
        #[command(subcommand)]
        command: Known,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Known {
        Forward(Absent),
    }

    #[test]
    fn a_command_that_is_not_in_this_build_takes_any_words() {
        for line in [
            "",
            "--help",
            "-q mail --to nats://host",
            "--test",
            "zset-hash --from x -- y",
            "--store redis://h -v",
        ] {
            let words = ["punctual", "forward"].into_iter().chain(line.split_whitespace());
            let Known::Forward(_) =
                Line::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}")).command;
        }
    }

    #[test]
    fn the_error_says_what_to_install_and_ends_with_2() {
        let failure = failure(("forward", "forward"));
        let text = failure.to_string();
        assert!(text.contains("without the cargo feature `forward`"), "{text}");
        assert!(
            text.contains("cargo install --locked --path crates/punctual-cli --features forward"),
            "{text}"
        );
        assert_eq!(failure.exit(), 2);
    }
}
