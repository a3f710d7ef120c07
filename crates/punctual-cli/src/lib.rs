//! The program `punctual`: a durable job queue from the shell. It uses only the public interface of the library.
//!
//! It is a library so that the package can ask for its own features in its tests: they then have every command, however they are built.
//! Programs use the package `punctual`, not this one.

#![expect(clippy::format_push_string, reason = "texts for people are put together once per command")]

mod absent;
mod args;
mod commands;
mod config;
#[cfg(any(unix, feature = "forward", feature = "serve"))]
mod descriptors;
mod errors;
#[cfg(unix)]
mod family;
mod fields;
#[cfg(test)]
mod help;
mod output;
mod paint;
mod quantile;
#[cfg(all(test, unix))]
mod reference;
mod requests;
mod talk;
#[cfg(feature = "otel")]
mod telemetry;
mod times;

use std::process::ExitCode;

/// Runs the command that the arguments of the process name, and returns its exit code.
pub fn run() -> ExitCode {
    #[cfg(unix)]
    if let Some(code) = commands::work::supervisor::run_if_asked(std::env::args_os()) {
        return code;
    }
    let args = match args::Args::of(std::env::args_os()) {
        Ok(Some(args)) => args,
        Ok(None) => return ExitCode::SUCCESS,
        Err(failure) => return told(&failure, output::Format::Human, paint::Paint::default()),
    };
    let (paint, format) = (args.globals.color.on(&std::io::stderr()), args.globals.format());
    match commands::run(args) {
        Ok(()) => {
            talk::flush();
            ExitCode::SUCCESS
        }
        Err(failure) => told(&failure, format, paint),
    }
}

fn told(failure: &errors::Failure, format: output::Format, paint: paint::Paint) -> ExitCode {
    failure.tell(format, paint);
    talk::flush();
    failure.exit().into()
}
