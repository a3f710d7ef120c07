//! Judges what punctual did: from the histories that processes recorded while they enqueued, worked and were killed, by
//! rules that know nothing of how a store works.
//!
//! A drill records ([`Recorder`], [`RecordingStore`]), ends with everything healed and drained, dumps what the store
//! holds ([`RecordingStore::dump`]), and asks the judge ([`judge`], or the program `punctual-check`).
//!
//! # The format
//!
//! NDJSON, one file per process and `*.ndjson` by name. A line is `{"m":…,"w":…,"n":…,"what":{…}}`: `m` is
//! `CLOCK_MONOTONIC` in nanoseconds, the axis on which the judge orders processes; `w` is the wall clock in Unix
//! milliseconds; `n` ties an answer to its call within the file. Each line is one `write(2)` on a file opened with
//! `O_APPEND`, **before** a call (`invoke`) and **after** its answer (`ok`, `fail`, or `info` where the outcome is
//! unknown), so that a `kill -9` loses none but the one being written: the last line of a file may be torn. A call without
//! an answer may have taken effect, at any time until its repetition was answered, or its process was gone, or the server
//! that it was sent to.
//!
//! | `what` | |
//! |---|---|
//! | `open` | first line of a file: the process' random name and how many jobs it may run at once |
//! | `invoke`, `ok`, `fail`, `info` | calls that may change something: enqueue, reserve, extend, settle (with its reserve), take, sweep, act, purge |
//! | `start`, `end` | a handler began, returned |
//! | `killed` | the nemesis killed that process and waited until it was gone |
//! | `server_killed` | the nemesis killed the store's server and waited until it was gone |
//! | `frozen` | it stopped that process for a while, with all that it was at |
//! | `harmed` | it did harm of another sort, so many times: it stalled the network, say; no time at all, if that may only make jobs late |
//! | `stalled` | the machine stood still for a while, as the watch of this process noticed: if for half of a lease or longer, that is harm to all |
//! | `healed` | it will do none from here on |
//! | `group_limit` | at most so many jobs of each group of a queue may run at once |
//! | `changed` | the driver changed how jobs are placed in the store's shards |
//! | `clock_stepped` | the nemesis moved the store's clock, which costs no lease |
//! | `dump`, `audit` | at rest: every job that the store holds, and what its own check found |
//!
//! The types in [`event`] are the format's definition, field by field. An id is enqueued for one life: drills don't reuse
//! ids on purpose (the oracle test does). Retention must keep dead jobs until the dump; done and cancelled ones may go,
//! their settlements account for them.
//!
//! # The rules
//!
//! | rule | broken when |
//! |---|---|
//! | D1 | an acknowledged job is neither at rest in the dump, nor ended, taken, called off or expired |
//! | D2 | a job runs that nobody enqueued, or with a payload that nobody handed over, or without a reservation |
//! | D3 | a job whose every enqueue was refused is there; an id is inserted twice |
//! | D4 | a job runs after its end, or rests in another state than it ended in |
//! | D5 | a run after the first follows neither a verdict that asks for it nor a lost lease; or more do, or more leases lapse, than the harm done explains: for a killed process its slots and the publications that it may hand out, for other harm the slots of all, without harm none |
//! | D6 | two leases of a job stand at once, or one ends twice, or a process goes on with one that it was told is gone |
//! | D7 | a job runs after three expired leases in a row, or dies of fewer |
//! | D7b | attempts, expired leases or the next instant are counted wrong |
//! | D8 | a job waits or runs at rest, unless it is due later; a due job does not start (a tick: is not reserved), or a lapsed lease is not reclaimed, within [`Options::start_within`], with a slot free and no harm done; a process that was asked to end has none |
//! | D9 | a job stands in two places at rest, or the store's audit found something |
//! | V | a verdict leads elsewhere than it says |
//! | S8, S9 | a lease is lost for no reason, is reclaimed before its time |
//! | F1 | a job's fences don't rise, or one is given twice |
//! | T1 | a job is reserved before its time, by the store's clock or by the referee's |
//! | T3 | a job is reserved at its `expires_at` or later |
//! | C1, C2 | a job is reserved after its cancel was answered, or before the time it was moved to |
//! | C4 | a run goes on for longer than [`Options::cancel_within`] after its cancel was requested, with no harm done to its process |
//! | C5 | a process reserves a job after it was asked to end, or begins one that it was given after that |
//! | U1 | two jobs hold one unique key at once |
//! | L1 | more jobs of a concurrency key run at once than may, or of a group of a queue whose limit was noted |
//! | E | a job that the drill marked doesn't end as it must, unless it died of leases of which one was held while the machine stood still |
//! | M | the calls about a job have no order in which the model, the contract as a program, gives the answers that were recorded; only with [`Options::replays`] |
//!
//! A store that promises less than `full` may lose what it answered in the last moments before its server was killed:
//! [`Options::undone_max`] says how long these are. What they cost is counted apart then; what is older is judged as ever.
//!
//! A rule speaks only where the history leaves no other explanation. The verdict is `valid`, `invalid`, or `vacuous` when
//! nothing was acknowledged or the dump is missing: a run that proves nothing must not pass.

pub mod event;
mod history;
mod recorder;
mod recording;
mod replay;
mod rules;
mod ticks;
mod verdict;

pub use history::History;
pub use recorder::{Recorder, monotonic_ns};
pub use recording::{RecordingStore, TAG_CRASHES, TAG_DONE, TAG_DONE_OR_CRASHES};
pub use rules::{Options, judge};
pub use ticks::{TickAtRest, judge_ticks};
pub use verdict::{Duplicated, Kept, Lateness, Moved, Replayed, Undone, Verdict, Violation, Word};
