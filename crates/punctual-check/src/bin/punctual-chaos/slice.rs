//! One slice of a marathon: jobs of all sorts come in while faults of all sorts are done, one after another, in an order and at
//! times that the seed says. Some of the jobs are forwarded to a webhook. A topic and a schedule go on beside them.

mod beside;
mod fault;

use std::{ops::Range, time::Duration};

use punctual::{
    Timestamp, When,
    job::Filter,
    store::{Action, List, Placement, Store as _, Target, clock::Clock, redis::RedisStore},
};
use punctual_check::{Verdict, Word, event::What, monotonic_ns};

use crate::{
    drill::{Drill, Outcome, shows_something},
    forward::Receiver,
    jobs::{FORWARDED, GROUP_LIMIT, GROUPED, TAG_PLAYTHING, all},
    place::Wanted,
    process::{Process, victim},
    servers::{Servers, cut_connections},
    shards::{Change, place},
};

use beside::Beside;
use fault::Fault;

/// Before each fault, in milliseconds.
const BETWEEN_MS: Range<u64> = 300..900;
/// Jobs that an operator looks at before each fault, …
const LOOKED_AT_MAX: usize = 100;
/// … and cancels or moves.
const PLAYED_WITH: usize = 4;
/// How much later one is due at most that is moved, in milliseconds.
const MOVED_MS: u64 = 3_000;
/// More than all slots.
const RUNNING_MAX: usize = 500;
/// The least time that a producer takes that began again.
const FEED_MIN: Duration = Duration::from_secs(1);

/// The role of a child that produces.
const FEED: &str = "feed";

impl Drill<'_> {
    /// Runs it to its verdict: one that shows nothing is an error.
    pub(crate) async fn slice(&mut self) -> Outcome<Verdict> {
        let faults = fault::draw(&self.profile.place, self.profile.kills, &mut self.rng);
        place(&self.store, Placement::Spread).await?;
        self.recorder.note(What::GroupLimit { queue: GROUPED.to_owned(), running: GROUP_LIMIT });
        let redis = match self.profile.place {
            Wanted::Server(_) | Wanted::WholeCluster => {
                Some(RedisStore::open(&self.place.url, Clock::System).await?)
            }
            _ => None,
        };
        let between = Duration::from_millis(u64::midpoint(BETWEEN_MS.start, BETWEEN_MS.end));
        let mut left: Duration = faults.iter().map(|fault| between + fault.takes(&self.profile.place)).sum();
        let receiver = Receiver::start();
        self.forward_to = Some(receiver.url());
        self.spawn_workers()?;
        // Which process begins at which number.
        let mut feeds = Vec::new();
        for first in 1..=self.profile.producers {
            feeds.push((self.spawn_stream(FEED, first, left)?, first));
        }
        let mut beside = Beside::begin(&self.client).await?;
        for fault in faults {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(BETWEEN_MS))).await;
            self.play_with_some().await?;
            beside.publish(&self.client).await?;
            left = left.saturating_sub(between + fault.takes(&self.profile.place));
            match fault {
                Fault::KillWorker => self.kill_a_worker().await?,
                Fault::KillProducer => self.kill_a_producer(&mut feeds, left).await?,
                Fault::KillServer => self.kill_who_serves().await?,
                Fault::Freeze => self.freeze_a_worker().await?,
                Fault::Cut => self.cut()?,
                Fault::Shards(number) => {
                    let store = redis.as_ref().ok_or("such a store has no shards")?;
                    Change::Shards(number).make(store, &self.recorder).await?;
                }
            }
            self.expect_alive()?;
        }
        self.end_of(FEED)?;
        beside.end(&self.client).await?;
        let verdict = self.rest().await?;
        let said = verdict.to_string();
        let outcome = self.judge_slice(&beside, &receiver, verdict).await;
        // A replica that they did not choose may have confirmed writes meanwhile.
        let is_shaken = self.place.servers.as_ref().is_some_and(Servers::have_replaced_by_themselves);
        let problem = match &outcome {
            Ok(verdict) if verdict.verdict == Word::Valid => return outcome,
            Ok(_) => String::new(),
            Err(problem) => format!("{problem}\n"),
        };
        if is_shaken {
            return Err(format!(
                "sentinels replaced a primary that was alive: nothing is shown about `replicated(1)`\n{problem}{said}"
            )
            .into());
        }
        outcome
    }

    /// The verdict on everything that the slice did.
    async fn judge_slice(&self, beside: &Beside, receiver: &Receiver, verdict: Verdict) -> Outcome<Verdict> {
        if verdict.verdict == Word::Valid {
            beside.judge(&self.client).await?;
            self.judge_forwarded(receiver).await?;
        }
        shows_something(verdict)
    }

    /// Each forwarded job that is done arrived.
    async fn judge_forwarded(&self, receiver: &Receiver) -> Outcome<()> {
        let done = all(&self.client, &Filter::parse(&format!("state:done kind:{FORWARDED}"))?).await?;
        if done.is_empty() {
            return Err("no job was forwarded: nothing is shown".into());
        }
        match done.iter().find(|job| !receiver.has(job.id)) {
            Some(job) => Err(format!("job {} was forwarded and never arrived", job.id).into()),
            None => Ok(()),
        }
    }

    /// An operator cancels some jobs and moves others.
    async fn play_with_some(&mut self) -> Outcome<()> {
        let filter = Filter::parse(&format!("state:waiting,running tag:{TAG_PLAYTHING}"))?;
        let list = List { filter, after: None, limit: LOOKED_AT_MAX };
        let mut jobs = match self.client.list(&list).await {
            Ok(page) => page.jobs,
            Err(error) if error.is_repeatable() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.rng.shuffle(&mut jobs);
        for job in jobs.iter().take(PLAYED_WITH) {
            let action = if self.rng.bool() {
                Action::Cancel { reason: None }
            } else {
                let due = job.run_at.as_ms() + self.rng.u64(..MOVED_MS);
                Action::Reschedule(When::At(Timestamp::from_ms(due)?))
            };
            match self.store.act(&[Target::from(job.id)], &action).await {
                Err(error) if !error.is_repeatable() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    // ── faults ──

    /// The place of a worker that is at work, and stands still; of any other one if there is none.
    async fn worker_at_work(&mut self) -> Outcome<usize> {
        let rng = self.rng.fork();
        let is_worker = |at: &usize| self.children[*at].proc.starts_with("worker");
        let places: Vec<usize> = (0..self.children.len()).filter(is_worker).collect();
        let workers: Vec<&Process> = places.iter().map(|at| &self.children[*at]).collect();
        let list = List { filter: Filter::parse("state:running")?, after: None, limit: RUNNING_MAX };
        let at = victim(rng, &workers, async |worker| match self.client.list(&list).await {
            Ok(page) => {
                let is_its = |by: &str| by == worker.proc;
                Ok(page.jobs.iter().any(|job| job.running.as_ref().is_some_and(|run| is_its(&run.worker))))
            }
            Err(error) if error.is_repeatable() => Ok(false),
            Err(error) => Err(error.into()),
        })
        .await?;
        Ok(places[at])
    }

    async fn kill_a_worker(&mut self) -> Outcome<()> {
        let at = self.worker_at_work().await?;
        self.kill(at)?;
        self.spawn_worker()
    }

    /// Kills a producer that has jobs left, and has its like begin from the start: most of its jobs are there by then. A worker,
    /// if all of them are done.
    async fn kill_a_producer(&mut self, feeds: &mut [(String, u32)], left: Duration) -> Outcome<()> {
        let mut alive = Vec::new();
        for (at, child) in self.children.iter_mut().enumerate() {
            if child.proc.starts_with(FEED) && child.ended()?.is_none() {
                alive.push(at);
            }
        }
        let Some(&at) = self.rng.choice(&alive) else { return self.kill_a_worker().await };
        let feed = feeds.iter_mut().find(|(proc, _)| *proc == self.children[at].proc);
        let (proc, first) = feed.ok_or("a producer of whom nobody knows")?;
        self.kill(at)?;
        *proc = self.spawn_stream(FEED, *first, left.max(FEED_MIN))?;
        Ok(())
    }

    /// Kills the server that the processes talk to. It comes back, or a replica takes over.
    async fn kill_who_serves(&mut self) -> Outcome<()> {
        if self.place.server.is_some() {
            return self.restart_the_server(None).await.map(drop);
        }
        if let Some(servers) = &mut self.place.servers {
            servers.rotate(self.rng.usize(..3));
            return self.fail_over();
        }
        self.replace_the_gateway().await
    }

    /// Stops a worker for longer than its lease.
    async fn freeze_a_worker(&mut self) -> Outcome<()> {
        let since = monotonic_ns();
        let at = self.worker_at_work().await?;
        let for_ms = u64::try_from(self.profile.lease.as_millis())?;
        self.children[at].freeze()?;
        tokio::time::sleep(Duration::from_millis(for_ms + self.rng.u64(for_ms / 4..for_ms))).await;
        self.children[at].thaw()?;
        // It may have stood still in a transaction.
        let with_lock = self.profile.place == Wanted::File;
        self.recorder.note(What::Frozen { proc: self.children[at].proc.clone(), since, with_lock });
        Ok(())
    }

    /// Cuts the connections of programs to the servers of Redis.
    fn cut(&mut self) -> Outcome<()> {
        let since = monotonic_ns();
        match (&self.place.server, &mut self.place.servers) {
            (Some(server), _) => cut_connections(server),
            (None, Some(servers)) => servers.cut_connections(),
            (None, None) => return Err("there are no connections to cut".into()),
        }
        self.recorder.note(What::Harmed { since, times: 1, proc: None });
        Ok(())
    }
}
