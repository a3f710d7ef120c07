//! The configuration of a worker: one field per option.

use std::{sync::Arc, time::Duration};

use super::{
    dead_hook::OnDead, handlers::Handlers, health::Health, publication, queues::Queues, report::LiveReport,
    run::guarded,
};
#[cfg(feature = "cron")]
use crate::core::schedule::Schedule;
use crate::{
    core::registration::{Forwarding, WRITE_EVERY},
    runtime::client::Client,
};

/// Slots (default).
const SLOTS_DEFAULT: usize = 50;
/// How long handlers can take to end at shutdown (default).
const GRACE_DEFAULT: Duration = Duration::from_secs(30);
/// The longest grace period; longer ones are cut to it.
pub const GRACE_MAX: Duration = Duration::from_hours(365 * 24);

/// The options of a worker. They start with their defaults.
#[derive(Clone)]
pub(crate) struct Config {
    /// The name, shown to people. A cancel notifies the worker by it.
    pub(crate) name: String,
    pub(crate) slots: usize,
    /// The lease of jobs that have none of their own; `None` means the queue's.
    pub(crate) lease: Option<Duration>,
    pub(crate) handlers: Handlers,
    pub(crate) on_dead: Option<OnDead>,
    /// How long handlers can take to end at shutdown.
    pub(crate) grace: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) timeout_grace: Duration,
    /// The longest pause that a run can request.
    pub(crate) retry_after_max: Duration,
    pub(crate) health: Health,
    /// Whether a shared [`Health`] reports it.
    pub(crate) shares_health: bool,
    /// Whether it also distributes publications.
    pub(crate) serves_topics: bool,
    /// How often it registers itself in the store; `None` means never.
    pub(crate) registers: Option<Duration>,
    /// Reports what it forwards; `None` if it is no forwarder.
    pub(crate) forwarding: Option<Arc<dyn Fn() -> Forwarding + Send + Sync>>,
    /// Whether the span of a job's first run is a child of its producer's span.
    pub(crate) continues_traces: bool,
    pub(crate) live: LiveReport,
    #[cfg(feature = "cron")]
    pub(crate) schedules: Vec<(String, Schedule)>,
}

impl Config {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            slots: SLOTS_DEFAULT,
            lease: None,
            handlers: Handlers::default(),
            on_dead: None,
            grace: GRACE_DEFAULT,
            cancel_grace: GRACE_DEFAULT,
            timeout_grace: Duration::ZERO,
            retry_after_max: Duration::MAX,
            health: Health::default(),
            shares_health: false,
            serves_topics: true,
            registers: Some(WRITE_EVERY),
            forwarding: None,
            continues_traces: false,
            live: LiveReport::default(),
            #[cfg(feature = "cron")]
            schedules: Vec::new(),
        }
    }

    /// Cuts grace periods to the longest one.
    pub(crate) fn cut_graces(&mut self) {
        for grace in [&mut self.grace, &mut self.cancel_grace, &mut self.timeout_grace] {
            *grace = GRACE_MAX.min(*grace);
        }
    }
}

/// The defaults of a worker's options, for the reference pages.
pub struct Defaults {
    /// Of `slots`.
    pub slots: usize,
    /// Of `lease`; `None` means the queue's.
    pub lease: Option<Duration>,
    /// Of `shutdown_grace`.
    pub shutdown_grace: Duration,
    /// Of `cancel_grace`.
    pub cancel_grace: Duration,
    /// Of `timeout_grace`.
    pub timeout_grace: Duration,
    /// Of `retry_after_max`; `None` means no bound.
    pub retry_after_max: Option<Duration>,
    /// Of `serve_topics`.
    pub serve_topics: bool,
    /// Of `continue_trace`.
    pub continue_trace: bool,
    /// Of `register`.
    pub register: bool,
}

/// Returns the defaults of a worker's options.
pub fn defaults() -> Defaults {
    let config = Config::new(String::new());
    Defaults {
        slots: config.slots,
        lease: config.lease,
        shutdown_grace: config.grace,
        cancel_grace: config.cancel_grace,
        timeout_grace: config.timeout_grace,
        retry_after_max: (config.retry_after_max != Duration::MAX).then_some(config.retry_after_max),
        serve_topics: config.serves_topics,
        continue_trace: config.continues_traces,
        register: config.registers.is_some(),
    }
}

/// A complete and checked worker.
pub(crate) struct Setup {
    pub(crate) client: Client,
    pub(crate) queues: Queues,
    pub(crate) config: Config,
}

impl Setup {
    /// The second worker, which distributes publications; `None` if this worker does not.
    pub(crate) fn of_publications(&self) -> Option<Self> {
        self.config.serves_topics.then(|| Self {
            client: self.client.clone(),
            queues: Queues::of_publications(),
            config: Config {
                slots: publication::SLOTS,
                handlers: Handlers::of_one(guarded(publication::handler(), self.config.timeout_grace)),
                #[cfg(feature = "cron")]
                schedules: Vec::new(),
                serves_topics: false,
                live: LiveReport::default(),
                health: Health::default(),
                shares_health: false,
                ..self.config.clone()
            },
        })
    }
}
