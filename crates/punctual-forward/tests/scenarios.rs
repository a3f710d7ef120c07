//! The scenario among this package's examples, with a broker of RabbitMQ, on a file and on a server of Redis (docs/scenarios.md
//! tells of it).
//!
//! Its program is built with the tests of this package, but not by `--test scenarios` alone: for that say `cargo build -p
//! punctual-forward --examples` first. `--nocapture` shows what it says.
#![cfg(feature = "amqp")]

#[path = "support/rabbitmq.rs"]
mod rabbitmq;
#[path = "../../punctual/tests/support/scenario.rs"]
mod scenario;
#[path = "../../punctual/tests/support/redis.rs"]
mod server;

#[test]
fn a_recharge_is_reminded_of_by_way_of_rabbitmq() {
    let broker = rabbitmq::Broker::start();
    let amqp = broker.url();
    scenario::run("recharge_reminder", &["--amqp", &amqp]);
    let store = server::Server::shared().url();
    scenario::run("recharge_reminder", &["--amqp", &amqp, "--store", &store]);
}
