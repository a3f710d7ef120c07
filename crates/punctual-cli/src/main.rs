//! The binary `punctual`: a durable job queue from the shell. It knows the library's public face only.

#![expect(clippy::format_push_string, reason = "texts for people are put together once per command")]

mod args;
mod commands;
mod errors;
mod output;
mod quantile;
mod times;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(args::Args::of(std::env::args_os())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            failure.exit().into()
        }
    }
}
