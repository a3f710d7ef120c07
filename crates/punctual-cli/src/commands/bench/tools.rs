//! `punctual bench tools`: measures rate limiters and leaderboards, next to hand-written ones on the same server.
//!
//! Each figure has a fresh store, or keys of its own. Large keys are removed before the next figure.

mod board;
mod figures;
mod handmade;
mod limiter;

use std::{future::Future, time::Instant};

use anyhow::Result;
use punctual::store::Keep;
use tokio::task::JoinSet;

use self::{
    board::Board,
    figures::{Figures, Speed},
    limiter::Limiter,
};
use super::{CALLERS, place::Place, server::Cost, step};

/// How large the measurements are.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  punctual bench tools --calls 10000 --keys 100000
  punctual bench tools --store redis://localhost -o json")]
pub(crate) struct Sizes {
    /// Number of calls of each speed figure (default: 100,000).
    #[arg(long, default_value_t = 100_000, hide_default_value = true, value_name = "N")]
    calls: usize,
    /// Number of keys, or members, of each memory figure (default: 1,000,000).
    #[arg(long, default_value_t = 1_000_000, hide_default_value = true, value_name = "N")]
    keys: usize,
}

/// Measures all of it.
pub(super) async fn measure(place: &Place, sizes: &Sizes) -> Result<Figures> {
    let client = place.fresh("tools", Keep::NOTHING).await?;
    let checks = client.store().doctor().await?;
    let version = checks.into_iter().find(|check| check.name == "version").map(|check| check.text);
    let durability = client.store().durability().name();
    let mut figures = Figures::new(place.shown().to_owned(), version, durability, sizes.keys);
    // On Redis only there is something to be beside of.
    let is_ours = |name: &str| place.server().is_some() || name != "script";
    for subject in Limiter::ALL.into_iter().filter(|subject| is_ours(subject.name())) {
        step(&format!("a rate limiter: {}", subject.name()));
        figures.limiters.push(limiter::measure(place, sizes, subject).await?);
    }
    for subject in Board::ALL.into_iter().filter(|subject| is_ours(subject.name())) {
        step(&format!("a leaderboard: {}", subject.name()));
        figures.boards.push(board::measure(place, sizes, subject).await?);
    }
    Ok(figures)
}

/// The name of a store that nothing was written to yet.
fn fresh_name() -> String {
    format!("tools-{:08x}", fastrand::u32(..))
}

/// Makes `calls` calls by several callers, each one after the other. A call gets its number.
async fn call<F, T>(callers: usize, calls: usize, call: F) -> Result<()>
where
    F: Fn(usize) -> T + Clone + Send + 'static,
    T: Future<Output = Result<()>> + Send + 'static,
{
    let each = calls.div_ceil(callers);
    let mut all = JoinSet::new();
    for caller in 0..callers {
        let call = call.clone();
        all.spawn(async move {
            for n in caller * each..calls.min((caller + 1) * each) {
                call(n).await?;
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(ended) = all.join_next().await {
        ended??;
    }
    Ok(())
}

/// Calls per second, and what each cost the server if there is one.
async fn rate<F, T>(place: &Place, callers: usize, calls: usize, each: F) -> Result<(f64, Option<Cost>)>
where
    F: Fn(usize) -> T + Clone + Send + 'static,
    T: Future<Output = Result<()>> + Send + 'static,
{
    let before = super::usage(place).await?;
    let begin = Instant::now();
    call(callers, calls, each).await?;
    let took = begin.elapsed();
    Ok((super::rate(calls, took), super::cost(place, before, calls).await?))
}

/// Calls of one caller, and of many: each sort on what its own `ready` makes, given how many there will be.
async fn speed<F, T>(place: &Place, calls: usize, ready: impl AsyncFn(usize) -> Result<F>) -> Result<Speed>
where
    F: Fn(usize) -> T + Clone + Send + 'static,
    T: Future<Output = Result<()>> + Send + 'static,
{
    let alone = (calls / 5).max(1);
    let (per_s, _) = rate(place, 1, alone, ready(alone).await?).await?;
    let (per_s_64, cost) = rate(place, CALLERS, calls, ready(calls).await?).await?;
    Ok(Speed { per_s, per_s_64, server_us: cost.map(|cost| cost.us) })
}
