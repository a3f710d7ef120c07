//! What a worker is configured with. Each option has one field here.

use std::time::Duration;

use super::{
    dead_hook::OnDead, handlers::Handlers, health::Health, publication, queues::Queues, report::LiveReport,
    run::guarded,
};
#[cfg(feature = "cron")]
use crate::core::schedule::Schedule;
use crate::runtime::client::Client;

/// Slots where nobody chose a number.
const SLOTS_DEFAULT: usize = 50;
/// How long handlers may take to end at shutdown where nobody chose a time.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);
/// Longest grace; longer ones are cut to it.
pub(crate) const GRACE_MAX: Duration = Duration::from_hours(365 * 24);

/// The options of a worker, with their defaults.
#[derive(Clone)]
pub(crate) struct Config {
    /// For people, and the bell that a cancel rings.
    pub(crate) name: String,
    pub(crate) slots: usize,
    /// The lease of jobs that have none of their own; `None`: the queue's.
    pub(crate) lease: Option<Duration>,
    pub(crate) handlers: Handlers,
    pub(crate) on_dead: Option<OnDead>,
    /// How long handlers may take to end at shutdown.
    pub(crate) grace: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) timeout_grace: Duration,
    /// The longest pause that a run is granted that asks for one.
    pub(crate) retry_after_max: Duration,
    pub(crate) health: Health,
    /// Whether another part of the program reports its health.
    pub(crate) shares_health: bool,
    /// Whether it hands out publications, too.
    pub(crate) serves_topics: bool,
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
            live: LiveReport::default(),
            #[cfg(feature = "cron")]
            schedules: Vec::new(),
        }
    }

    /// Cuts grace periods to the longest one that there is.
    pub(crate) fn cut_graces(&mut self) {
        for grace in [&mut self.grace, &mut self.cancel_grace, &mut self.timeout_grace] {
            *grace = GRACE_MAX.min(*grace);
        }
    }
}

/// A worker that is complete and checked.
pub(crate) struct Setup {
    pub(crate) client: Client,
    pub(crate) queues: Queues,
    pub(crate) config: Config,
}

impl Setup {
    /// The worker beside this one, that hands out publications; `None`: others do.
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
