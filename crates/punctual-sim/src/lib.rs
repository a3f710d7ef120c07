//! Simulates fleets of punctual: workers and clients as tasks of one thread, on a virtual clock, around the store in memory.
//!
//! A seed decides all of it, so that each run repeats exactly. A [`Plan`] says what happens, [`run`] makes it happen and has
//! the recorded history judged, [`shrink`] makes a failing plan smaller, and [`story`] tells it to a reader.
//!
//! A run has two phases. In the first one, processes crash and stop, calls fail or arrive late, and answers and notifications
//! are lost: nothing wrong may happen. Then all of that ends, and the right thing must happen: each due job starts, each one ends, and
//! nothing stays with the dead.

mod bug;
mod client;
mod fleet;
mod handler;
mod log;
mod network;
mod plan;
mod process;
mod schedule;
pub mod seeds;
pub mod shrink;
pub mod story;

pub use bug::Bug;
pub use fleet::{Run, run};
pub use plan::Plan;
