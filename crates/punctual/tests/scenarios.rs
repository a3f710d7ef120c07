//! The scenarios among the examples, on a file and on a server of Redis (docs/scenarios.md tells of them).
//!
//! Their programs are built with the tests of this package, but not by `--test scenarios` alone: for that say `cargo build -p
//! punctual --examples --features redis` first. `--nocapture` shows what they say.

#[path = "support/scenario.rs"]
mod scenario;
#[cfg(feature = "redis")]
#[path = "support/redis.rs"]
mod server;

/// The tests of the shop run with these.
#[cfg(all(feature = "sqlite", feature = "testing"))]
#[allow(dead_code, reason = "its program is run as one")]
#[path = "../examples/shop.rs"]
mod shop;

macro_rules! scenarios {
    ($($example:ident)+) => {
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $( #[test] fn $example() { crate::scenario::run(stringify!($example), &[]); } )+

            #[test]
            fn shop() {
                crate::scenario::run_with("shop", |program| program.env_remove("PUNCTUAL_STORE"));
            }
        }
        #[cfg(feature = "redis")]
        mod redis {
            $( #[test] fn $example() {
                let url = crate::server::Server::shared().url();
                crate::scenario::run(stringify!($example), &["--store", &url]);
            } )+

            #[test]
            fn shop() {
                let url = crate::server::Server::shared().url();
                crate::scenario::run_with("shop", |program| program.env("PUNCTUAL_STORE", url));
            }
        }
    };
}

scenarios! { hottest_posts locked_row order_timeout redelivery reply_limit sold_items }
