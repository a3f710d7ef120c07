//! Explores the model of punctual exhaustively: all interleavings of a few workers, jobs and faults.
//!
//! A [`Scope`] says what can happen. A [`World`](world::World) is a state: the model, its workers, its client and its
//! operator. [`explore`] visits every state that can be reached, checks each answer with a referee that shares no code with
//! the model, and drains a copy of each state. [`Broken`] twins show that each rule would be found broken.
//!
//! It never touches a real store: that these answer as the model does is what `tests/oracle` of the library compares.

pub mod broken;
pub mod drain;
pub mod event;
pub mod explorer;
pub mod outage;
mod referee;
pub mod rule;
pub mod scope;
mod store;
pub mod world;

pub use self::{
    broken::Broken,
    event::Event,
    explorer::{Found, STATES_MAX, STORY_LINES_MAX, explore},
    rule::Rule,
    scope::Scope,
};
