//! The scenarios among the examples: each runs to its end on a file and on a server of Redis, and finds what it promises.
//!
//! Their programs are built with the tests of this package, but not by `--test scenarios` alone: then say
//! `cargo build -p punctual --examples --features redis` before. `--nocapture` shows what they say.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[cfg(feature = "redis")]
#[path = "support/redis.rs"]
mod server;

use std::process::Command;

/// Runs an example on a store; none is named for a new file.
fn run(example: &str, store: Option<&str>) {
    // Cargo puts examples one folder above the tests.
    let own = std::env::current_exe().unwrap();
    let program = own.parent().unwrap().parent().unwrap().join("examples").join(example);
    assert!(
        program.exists(),
        "{} is not built: cargo build -p punctual --examples --features redis",
        program.display()
    );
    let mut command = Command::new(program);
    if let Some(store) = store {
        command.args(["--store", store]);
    }
    let output = command.output().unwrap();
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // In one piece: others run beside it.
    println!("── {example} ──\n{said}{failed}");
    assert!(output.status.success(), "{example}: {}", output.status);
    assert!(
        said.lines().last().unwrap_or_default().starts_with("checked "),
        "{example} tells what it checked"
    );
}

macro_rules! scenarios {
    ($($example:ident)+) => {
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $( #[test] fn $example() { super::run(stringify!($example), None); } )+
        }
        #[cfg(feature = "redis")]
        mod redis {
            $( #[test] fn $example() {
                super::run(stringify!($example), Some(&super::server::Server::shared().url()));
            } )+
        }
    };
}

scenarios! { hottest_posts locked_row order_timeout redelivery reply_limit sold_items }
