//! The HTTP API: who may call what, hostile requests, waits, a server under load, and the store that is its client.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

#[path = "api/actions.rs"]
mod actions;
#[path = "api/bodies.rs"]
mod bodies;
#[path = "api/calls.rs"]
mod calls;
#[path = "api/client.rs"]
mod client;
#[path = "api/document.rs"]
mod document;
#[path = "api/figures.rs"]
mod figures;
#[path = "api/foreign.rs"]
mod foreign;
#[path = "api/hidden.rs"]
mod hidden;
#[path = "api/lines.rs"]
mod lines;
#[path = "api/live.rs"]
mod live;
#[path = "api/resources.rs"]
mod resources;
#[path = "api/rights.rs"]
mod rights;
#[path = "api/schedules.rs"]
mod schedules;
#[path = "api/scopes.rs"]
mod scopes;
#[path = "api/settings.rs"]
mod settings;
#[path = "api/site.rs"]
mod site;
#[path = "api/topics.rs"]
mod topics;
#[path = "api/waits.rs"]
mod waits;
#[path = "api/workers.rs"]
mod workers;
