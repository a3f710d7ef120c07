//! The drill in which jobs are handed over to another system that fails in every way it knows, by forwarders that are killed:
//! what arrived, how late, and what became of the jobs that can't be handed over. A queue beside them, with a worker of its
//! own, must not notice.
//!
//! Judged: each job that is done arrived; each job that can't be handed over is dead in the other side's words, or lost its last
//! attempt to a kill; what arrived twice was on its way when a fault cut its confirm off. Lateness is told, and not judged:
//! that is the machine's as well.

mod arrivals;
mod child;
mod frames;
mod judge;
mod nats;
mod rabbitmq;
mod scene;
mod streams;
mod throughput;
mod webhook;

use crate::{
    drill::{Outcome, Stage},
    profile::Profile,
};

pub(crate) use self::{
    child::{forward, work_locally},
    webhook::Receiver,
};

/// Whose jobs are handed over.
const QUEUE: &str = "orders";
/// The queue beside it.
const LOCAL: &str = "local";

/// Who takes the jobs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    RabbitMq,
    Nats,
    Webhook,
}

impl To {
    pub(crate) const ALL: [Self; 3] = [Self::RabbitMq, Self::Nats, Self::Webhook];

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Nats => "nats",
            Self::Webhook => "webhook",
        }
    }
}

/// Runs it; answers whether all went as promised.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let stage = Stage::set(profile)?;
    if profile.measures_throughput {
        return stage.runtime.block_on(throughput::run(profile, &stage.dir));
    }
    let mut is_kept = true;
    for to in To::ALL.into_iter().filter(|to| profile.to.is_none_or(|wanted| wanted == *to)) {
        let dir = stage.dir.join(to.text());
        std::fs::create_dir_all(&dir)?;
        eprintln!("── jobs to {} ──", to.text());
        is_kept &= stage.runtime.block_on(async {
            match to {
                To::RabbitMq => rabbitmq::run(profile, dir).await,
                To::Nats => nats::run(profile, dir).await,
                To::Webhook => webhook::run(profile, dir).await,
            }
        })?;
    }
    Ok(is_kept)
}

/// Microseconds by the system's clock, which is that of due times on this machine.
fn wall_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
