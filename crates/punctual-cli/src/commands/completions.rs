//! `punctual completions SHELL`: prints the completion script of a shell.

use std::io::{self, Write as _};

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{args::Args, errors::Result};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual completions bash > ~/.local/share/bash-completion/completions/punctual
  punctual completions zsh > ~/.zfunc/_punctual
  punctual completions fish > ~/.config/fish/completions/punctual.fish")]
pub(crate) struct Completions {
    /// Name of the shell.
    shell: Shell,
}

pub(crate) fn run(args: &Completions) -> Result {
    // Written to memory first: `generate` panics when its reader goes away.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "punctual", &mut script);
    let mut out = io::stdout();
    out.write_all(&script)?;
    Ok(out.flush()?)
}
