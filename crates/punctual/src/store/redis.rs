//! The store for many machines: one server of Redis or Valkey.
//!
//! What talks to the server lives on one thread per store (`thread`). Where the server is, and how it is to be used, says
//! an `address`.

mod address;
mod script;
mod thread;
