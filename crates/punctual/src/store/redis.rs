//! The store for many machines: one server of Redis or Valkey.
//!
//! What talks to the server lives on one thread per store (`thread`): the connection that carries the verbs (`link`) and
//! the one that waits for work (`doorbell`). Where the server is, and how it is to be used, says an `address`.

mod address;
mod connection;
mod doorbell;
mod fault;
mod link;
mod script;
mod thread;

#[cfg(test)]
#[path = "../../tests/support/redis.rs"]
mod server;
