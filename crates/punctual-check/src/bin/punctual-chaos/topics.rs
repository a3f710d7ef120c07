//! A topic with five subscriptions, and publications that come due while worker processes are killed in the midst of handing them
//! out: each subscription must have got one job of each, and each must be done; of those that were called off before, none.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use punctual::{
    Client, Ctx, JobId, JobRecord, NewJob, Payload, When, Worker,
    job::Filter,
    store::{Acted, Action, Target, url::connect},
    topic::TOPICS_QUEUE,
};

use crate::{
    crew::Crew,
    drill::{Outcome, Stage},
    jobs::all,
    place::Place,
    process::victim,
    profile::Profile,
};

const TOPIC: &str = "chaos";
/// The queues that are subscribed.
const QUEUES: [&str; 5] = ["q1", "q2", "q3", "q4", "q5"];
/// Of so many publications one is so large that its jobs don't fit one call.
const LARGE_EVERY: usize = 40;
const LARGE_BYTES: usize = 300_000;
/// Of so many publications beside the others one is called off before it is due.
const CALLED_OFF_EVERY: usize = 20;
/// Over how long a kill's worth of publications comes due.
const PER_KILL: Duration = Duration::from_millis(200);
/// The first is due by then, so that all are published.
const AHEAD: Duration = Duration::from_secs(2);
/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(20);

// ── the child ──

/// Works until SIGTERM, or SIGKILL. Notes each start in a file of its own.
pub(crate) async fn work(url: &str, notes: &str, proc: &str, slots: usize, lease: Duration) -> Outcome<()> {
    let notes = Arc::new(fs::File::options().append(true).create(true).open(notes)?);
    let client = Client::new(connect(url).await?);
    QUEUES
        .iter()
        .fold(Worker::new(&client), |worker, queue| worker.queue(*queue))
        .name(proc)
        .slots(slots)
        .lease(lease)
        .handle_raw(move |job: JobRecord, _: Ctx| {
            let notes = Arc::clone(&notes);
            // One write, so that no kill leaves half a line.
            async move { (&*notes).write_all(format!("{}\n", job.id).as_bytes()) }
        })
        .run()
        .await?;
    Ok(())
}

// ── the parent ──

/// Runs it; answers whether all went as promised.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let stage = Stage::set(profile)?;
    let dir = stage.dir.clone();
    let place = Place::make(&profile.place, &dir);
    stage.runtime.block_on(async {
        let client = Client::new(connect(&place.url).await?);
        let args = vec![profile.slots.to_string(), profile.lease.as_millis().to_string()];
        let mut drill = Drill {
            profile,
            client,
            crew: Crew::start("subscriber", &place.url, dir.clone(), args, profile.workers)?,
            rng: Rng::with_seed(profile.seed),
        };
        drill.run().await
    })
}

struct Drill<'a> {
    profile: &'a Profile,
    client: Client,
    crew: Crew,
    rng: Rng,
}

impl Drill<'_> {
    async fn run(&mut self) -> Outcome<bool> {
        for queue in QUEUES {
            self.client.topic(TOPIC).subscribe(queue).await?;
        }
        let over = PER_KILL * self.profile.kills;
        let (published, called_off) = self.publish(over).await?;
        tokio::time::sleep(AHEAD).await;
        for _ in 0..self.profile.kills {
            tokio::time::sleep(PER_KILL.mul_f64(self.rng.f64() * 2.0)).await;
            let at = self.victim().await?;
            self.crew.kill(at)?;
        }
        let retried = self.rest().await?;
        eprintln!("{retried} that were killed three times in a row, retried by hand");
        self.crew.stop()?;
        self.judge(&published, &called_off).await
    }

    /// Which worker to kill: one that holds a publication, if there is one.
    async fn victim(&mut self) -> Outcome<usize> {
        let (rng, filter) = (self.rng.fork(), format!("state:running queue:{TOPICS_QUEUE}"));
        victim(rng, &self.crew.members, async |worker| {
            let held = self.all(&filter).await?;
            Ok(held.iter().any(|job| job.running.as_ref().is_some_and(|it| it.worker == worker.proc)))
        })
        .await
    }

    /// Publishes all, and calls some off; answers which are to be handed out, and which not.
    async fn publish(&mut self, over: Duration) -> Outcome<(BTreeSet<JobId>, Vec<JobId>)> {
        let (wanted, topic) = (self.profile.jobs as usize, self.client.topic(TOPIC));
        let mut jobs = Vec::new();
        for n in 0..wanted + wanted / CALLED_OFF_EVERY {
            let large = n.is_multiple_of(LARGE_EVERY);
            let text = "x".repeat(if large { LARGE_BYTES } else { 1 });
            let payload = Payload::json(format!("\"{text}\""));
            let job = NewJob::new(self.client.make_id(), "plain", "any", payload);
            let is_called_off = wanted <= n;
            // What is called off would come due in the midst of the others.
            let due = AHEAD + over.mul_f64(if is_called_off { 0.5 } else { self.rng.f64() });
            jobs.push(NewJob { run_at: When::In(due), ..job });
        }
        let mut ids = Vec::new();
        for answer in topic.push(jobs).await? {
            ids.push(answer.id().ok_or("a queue without a cap is full")?);
        }
        let called_off = ids.split_off(wanted);
        // All at once: none of them may be due before.
        let targets: Vec<_> = called_off.iter().copied().map(Target::from).collect();
        let acted = self.client.act(&targets, &Action::Cancel { reason: None }).await?;
        if let Some(at) = acted.iter().position(|acted| !matches!(acted, Acted::Done(..))) {
            return Err(format!("could not call {} off: {:?}", called_off[at], acted[at]).into());
        }
        Ok((ids.into_iter().collect(), called_off))
    }

    /// Until nothing waits or runs. What was killed three times in a row is dead, and is retried as people would: that makes
    /// nothing twice either. Answers how often.
    async fn rest(&self) -> Outcome<u32> {
        let (begin, mut retried) = (Instant::now(), 0);
        loop {
            let counts = self.client.count(None).await?;
            if counts.waiting == 0 && counts.running == 0 {
                let dead = self.all("state:dead").await?;
                let crashed = dead.iter().filter(|job| job.reason.as_deref() == Some("crashes"));
                let before = retried;
                for job in crashed {
                    self.client.retry(job.id).await?;
                    retried += 1;
                }
                if before == retried {
                    return Ok(retried);
                }
            }
            if PATIENCE < begin.elapsed() {
                return Err(format!("it is never done: {counts:?}").into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn judge(&self, published: &BTreeSet<JobId>, called_off: &[JobId]) -> Outcome<bool> {
        let (mut is_kept, mut seen) = (true, BTreeMap::<(String, String), u32>::new());
        let mut broken = |what: String| {
            eprintln!("BROKEN {what}");
            is_kept = false;
        };
        let (mut handed_out_again, mut jobs) = (0, BTreeSet::new());
        for job in self.all("").await? {
            if job.queue == TOPICS_QUEUE {
                handed_out_again += u32::from(!job.failures.is_empty());
                let expected = if called_off.contains(&job.id) { "cancelled" } else { "done" };
                if job.state.name() != expected {
                    broken(format!("publication {} is {}: {:?}", job.id, job.state, job.reason));
                }
                continue;
            }
            if job.state.name() != "done" {
                broken(format!("job {} of {} is {}: {:?}", job.id, job.queue, job.state, job.reason));
            }
            let of = job.headers.get("publication").cloned().unwrap_or_default();
            *seen.entry((of, job.queue.clone())).or_default() += 1;
            jobs.insert(job.id.to_string());
        }
        for id in published {
            for queue in QUEUES {
                let n = seen.remove(&(id.to_string(), queue.to_owned())).unwrap_or(0);
                if n != 1 {
                    broken(format!("{queue} has {n} jobs of publication {id}"));
                }
            }
        }
        for ((id, queue), n) in seen {
            broken(format!("{queue} has {n} jobs of {id:?}, which is to have none"));
        }
        let starts = self.starts();
        for job in jobs.iter().filter(|job| !starts.contains_key(*job)) {
            broken(format!("job {job} is done, and never began"));
        }
        let again = starts.values().map(|n| n - 1).sum::<u32>();
        let kills = self.profile.kills;
        if kills * self.profile.slots as u32 * 2 < again {
            broken(format!("{again} runs began again"));
        }
        let audit = self.client.audit(false, |_| ()).await?;
        if !audit.findings.is_empty() {
            broken(format!("the audit finds {:?}", audit.findings));
        }
        eprintln!(
            "{} publications to {} subscriptions: {} jobs, each done; {} called off; {kills} workers killed, \
             {handed_out_again} publications handed out again, {again} runs began again",
            published.len(),
            QUEUES.len(),
            jobs.len(),
            called_off.len(),
        );
        if handed_out_again == 0 {
            return Err("no kill met a publication: nothing is shown".into());
        }
        Ok(is_kept)
    }

    async fn all(&self, filter: &str) -> Outcome<Vec<JobRecord>> {
        Ok(all(&self.client, &Filter::parse(filter)?).await?)
    }

    /// How often each job was started.
    fn starts(&self) -> BTreeMap<String, u32> {
        let mut starts = BTreeMap::new();
        for id in self.crew.notes() {
            *starts.entry(id).or_default() += 1;
        }
        starts
    }
}
