//! The binary `punctual`: a durable job queue for the shell. It uses only the public API of the library.

#![expect(clippy::format_push_string, reason = "texts for people are put together once per command")]

mod args;
mod commands;
mod config;
mod errors;
#[cfg(unix)]
mod family;
mod fields;
#[cfg(test)]
mod help;
mod output;
mod paint;
mod quantile;
mod requests;
mod times;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(code) = commands::work::supervisor::run_if_asked(std::env::args_os()) {
        return code;
    }
    let args = match args::Args::of(std::env::args_os()) {
        Ok(Some(args)) => args,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => return told(&error.into(), output::Format::Human, paint::Paint::default()),
    };
    let (paint, format) = (args.globals.color.on(&std::io::stderr()), args.globals.format());
    match commands::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => told(&failure, format, paint),
    }
}

fn told(failure: &errors::Failure, format: output::Format, paint: paint::Paint) -> ExitCode {
    failure.tell(format, paint);
    failure.exit().into()
}
