//! `punctual completions SHELL`.

use std::io::{self, Write as _};

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{args::Args, errors::Result};

#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// Whose.
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
