//! What goes on beside the jobs of a slice: a topic with two subscriptions, and a schedule. The judge knows the jobs that come of
//! them; that none is missing, and none there twice, is looked for here.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use punctual::{
    Client, JobId, JobRecord, NewJob, Payload, State, Timestamp,
    job::Filter,
    schedule::{Cron, Misfire, Schedule},
    topic::TOPICS_QUEUE,
};
use punctual_check::{TickAtRest, judge_ticks};

use crate::{
    child::until_reached,
    drill::Outcome,
    jobs::{GROUPED, QUEUE, all},
};

const TOPIC: &str = "news";
const SUBSCRIBED: [&str; 2] = [QUEUE, GROUPED];
/// The kind of what is published.
const NEWS: &str = "news";
/// Publications before each fault.
const PUBLISHED: usize = 3;

const SCHEDULE: &str = "ticks";
/// The kind of its ticks.
const TICK: &str = "tick";
const EVERY: Duration = Duration::from_secs(1);
/// Ticks that were missed and are made up for, at most.
const MISSED_MAX: u32 = 1_000;
/// How long the schedule may take until it has made up for what it missed: its ticks wait for a slot, as do all jobs that are due,
/// and one that could not enqueue its successor waits for up to ten minutes.
const MADE_UP_MAX: Duration = Duration::from_mins(12);
const LOOK: Duration = Duration::from_millis(100);

/// A topic and a schedule.
pub(super) struct Beside {
    published: BTreeSet<JobId>,
    cron: Cron,
    begun: Timestamp,
    ended: Timestamp,
}

impl Beside {
    pub(super) async fn begin(client: &Client) -> Outcome<Self> {
        for queue in SUBSCRIBED {
            client.topic(TOPIC).subscribe(queue).await?;
        }
        let cron = Cron::every(EVERY)?.on_misfire(Misfire::RunAll { at_most: MISSED_MAX })?;
        let job = NewJob::new(client.make_id(), TICK, QUEUE, Payload::json("1"));
        client.schedule(SCHEDULE).put(Schedule::new(cron.clone(), job)?).await?;
        let begun = client.store().now().await?;
        Ok(Self { published: BTreeSet::new(), cron, begun, ended: begun })
    }

    /// Publishes some.
    pub(super) async fn publish(&mut self, client: &Client) -> Outcome<()> {
        // The same ones however often it takes.
        let job = || NewJob::new(client.make_id(), NEWS, "any", Payload::json("1"));
        let jobs: Vec<NewJob> = (0..PUBLISHED).map(|_| job()).collect();
        let answers = until_reached(async || client.topic(TOPIC).push(jobs.clone()).await).await?;
        self.published.extend(answers.iter().filter_map(punctual::store::Enqueued::id));
        Ok(())
    }

    /// Removes the schedule when no tick of it is overdue, so that nothing is left to come.
    pub(super) async fn end(&mut self, client: &Client) -> Outcome<()> {
        let schedule = client.schedule(SCHEDULE);
        let ticks = Filter::parse(&format!("kind:{TICK}"))?;
        let begin = Instant::now();
        loop {
            self.ended = until_reached(async || client.store().now().await).await?;
            let jobs = until_reached(async || all(client, &ticks).await).await?;
            // Not by when they are due: one that is made up for is due when it was enqueued, and one that could not enqueue its
            // successor was put off.
            let left = ticks_of(jobs.iter().filter(|job| !job.state.is_ended()))?.into_iter().min();
            if left.is_some_and(|next| self.ended < next.at) {
                break;
            }
            if MADE_UP_MAX < begin.elapsed() {
                return Err(
                    format!("a tick of the schedule is overdue, or none waits, for {MADE_UP_MAX:?}").into()
                );
            }
            tokio::time::sleep(LOOK).await;
        }
        until_reached(async || schedule.remove().await).await?;
        Ok(())
    }

    /// An error says what is missing, or there twice.
    pub(super) async fn judge(&self, client: &Client) -> Outcome<()> {
        let topics = all(client, &Filter::parse(&format!("queue:{TOPICS_QUEUE}"))?).await?;
        let dead = topics.iter().filter(|job| job.state == State::Dead);
        // One that the nemesis met three times in a row.
        let dead: BTreeSet<JobId> = dead.map(|job| job.id).collect();
        let mut news = Vec::new();
        for job in all(client, &Filter::parse(&format!("kind:{NEWS}"))?).await? {
            if job.queue != TOPICS_QUEUE {
                news.push((
                    job.headers.get("publication").ok_or("news of no publication")?.clone(),
                    job.queue,
                ));
            }
        }
        judge_publications(&self.published, &dead, &news)?;
        let jobs = all(client, &Filter::parse(&format!("kind:{TICK}"))?).await?;
        let ticks = ticks_of(jobs.iter().filter(|job| job.state != State::Cancelled))?;
        Ok(judge_ticks(&self.cron, Some(self.begun), self.ended, ticks)?)
    }
}

fn ticks_of<'a>(jobs: impl Iterator<Item = &'a JobRecord>) -> Outcome<Vec<TickAtRest>> {
    jobs.map(|job| Ok(TickAtRest::of(job).ok_or("a tick without its time")?)).collect()
}

/// Each publication has one job in each subscribed queue. `news`: of each job, which publication it is of, and its queue.
fn judge_publications(
    published: &BTreeSet<JobId>,
    dead: &BTreeSet<JobId>,
    news: &[(String, String)],
) -> Outcome<()> {
    let mut seen = BTreeMap::<(&str, &str), u32>::new();
    for (of, queue) in news {
        *seen.entry((of, queue)).or_default() += 1;
    }
    for id in published.difference(dead) {
        for queue in SUBSCRIBED {
            let number = seen.get(&(id.to_string().as_str(), queue)).copied().unwrap_or(0);
            if number != 1 {
                return Err(format!("{queue} has {number} jobs of publication {id}").into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_that_misses_a_queue_or_reaches_it_twice_is_noticed() {
        let id = |n: u64| JobId::derived(TOPICS_QUEUE, None, &n.to_string());
        let (published, dead) = (BTreeSet::from([id(1), id(2)]), BTreeSet::from([id(2)]));
        let judge = |jobs: &[(u64, &str)]| {
            let jobs: Vec<_> =
                jobs.iter().map(|(n, queue)| (id(*n).to_string(), (*queue).to_owned())).collect();
            judge_publications(&published, &dead, &jobs).is_ok()
        };
        assert!(judge(&[(1, QUEUE), (1, GROUPED)]) && judge(&[(1, GROUPED), (2, QUEUE), (1, QUEUE)]));
        assert!(!judge(&[]) && !judge(&[(1, QUEUE)]) && !judge(&[(1, QUEUE), (1, GROUPED), (1, QUEUE)]));
    }
}
