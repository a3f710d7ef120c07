//! The program `punctual`. Everything it does is in the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    punctual_cli::run()
}
