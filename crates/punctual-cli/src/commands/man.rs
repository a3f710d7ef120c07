//! `punctual man FOLDER`.

use std::path::PathBuf;

use clap::CommandFactory as _;

use crate::{args::Args, errors::Result};

#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// The folder. Pages in it are replaced.
    folder: PathBuf,
}

/// Writes `punctual.1`, and a page for each command, such as `punctual-push.1`.
pub(crate) fn run(args: &Man) -> Result {
    std::fs::create_dir_all(&args.folder)?;
    Ok(clap_mangen::generate_to(Args::command(), &args.folder)?)
}
