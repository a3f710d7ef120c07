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
/// How long before the end of the schedule its last tick may be.
const LAST_WITHIN: Duration = Duration::from_secs(5);
/// How long the schedule may take until it has made up for what it missed: its ticks wait for a slot, as do all jobs that are due.
const MADE_UP_MAX: Duration = Duration::from_mins(3);
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
        let begun = client.store().now().await?;
        client.schedule(SCHEDULE).put(Schedule::new(cron.clone(), job)?).await?;
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
        let begin = Instant::now();
        loop {
            self.ended = until_reached(async || client.store().now().await).await?;
            let next = until_reached(async || schedule.waiting().await).await?;
            // Not by when it is due: one that is made up for is due when it was enqueued.
            if let Some(tick) = next
                && self.ended < time_of(&tick)?
            {
                break;
            }
            if MADE_UP_MAX < begin.elapsed() {
                return Err(format!("the ticks of the schedule are overdue for {MADE_UP_MAX:?}").into());
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
        let ticks = all(client, &Filter::parse(&format!("kind:{TICK}"))?).await?;
        let mut at = Vec::new();
        // The one that waited when the schedule was removed is cancelled.
        for tick in ticks.iter().filter(|job| job.state != State::Cancelled) {
            at.push(time_of(tick)?);
        }
        judge_ticks(&self.cron, self.begun, self.ended, at)
    }
}

/// The time of the schedule that a tick stands for.
fn time_of(tick: &JobRecord) -> Outcome<Timestamp> {
    let at_ms = tick.headers.get("scheduled_for").ok_or("a tick without its time")?;
    Ok(Timestamp::from_ms(at_ms.parse()?)?)
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

/// Each tick is there once, from the beginning to the end.
fn judge_ticks(cron: &Cron, begun: Timestamp, ended: Timestamp, mut ticks: Vec<Timestamp>) -> Outcome<()> {
    ticks.sort_unstable();
    let (Some(&first), Some(&last)) = (ticks.first(), ticks.last()) else {
        return Err("the schedule never ticked".into());
    };
    if begun.after(2 * EVERY) < first {
        return Err(format!("the schedule was there at {begun}, and ticked first at {first}").into());
    }
    if last.after(LAST_WITHIN) < ended {
        return Err(format!("the schedule was there until {ended}, and ticked last at {last}").into());
    }
    let expected = std::iter::successors(Some(first), |tick| cron.next(*tick));
    for (expected, tick) in expected.zip(ticks) {
        if expected != tick {
            return Err(format!("the schedule ticked at {tick}, and should at {expected}").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_is_missing_or_there_twice_is_noticed() {
        let at = |ms| Timestamp::from_ms(ms).expect("an instant");
        let cron = Cron::every(EVERY).expect("a schedule");
        let judge = |ticks: &[u64]| {
            let ticks = ticks.iter().map(|s| at(s * 1_000)).collect();
            judge_ticks(&cron, at(99_500), at(105_500), ticks).is_ok()
        };
        assert!(judge(&[100, 101, 102, 103]) && judge(&[103, 102, 101, 100]));
        assert!(!judge(&[]) && !judge(&[100, 102]) && !judge(&[100, 100, 101]));
        assert!(!judge(&[102, 103]), "too late a beginning");
        let early_end = judge_ticks(&cron, at(99_500), at(155_500), vec![at(100_000)]);
        assert!(early_end.is_err(), "too early an end");
    }

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
