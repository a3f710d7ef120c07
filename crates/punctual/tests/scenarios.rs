//! The scenarios among the examples, on a file and on a server of Redis (docs/scenarios.md tells of them).
//!
//! Their programs are built with the tests of this package, but not by `--test scenarios` alone: for that say `cargo build -p
//! punctual --examples --features redis` first. `--nocapture` shows what they say.

#[path = "support/scenario.rs"]
mod scenario;
#[cfg(feature = "redis")]
#[path = "support/redis.rs"]
mod server;

macro_rules! scenarios {
    ($($example:ident)+) => {
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $( #[test] fn $example() { crate::scenario::run(stringify!($example), &[]); } )+
        }
        #[cfg(feature = "redis")]
        mod redis {
            $( #[test] fn $example() {
                let url = crate::server::Server::shared().url();
                crate::scenario::run(stringify!($example), &["--store", &url]);
            } )+
        }
    };
}

scenarios! { hottest_posts locked_row order_timeout redelivery reply_limit sold_items }
