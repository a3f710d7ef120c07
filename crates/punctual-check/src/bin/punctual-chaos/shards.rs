//! The drill in which the number of the store's shards changes from 1 to 8 and then to 3, under workers and producers that
//! go on. Some jobs have a concurrency key of which one may run at once: at no instant of the changes may two.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use punctual::{
    Client,
    store::{clock::Clock, redis::RedisStore},
};

use crate::{
    drill::{Drill, Outcome},
    jobs,
};

/// The numbers of shards, one after another.
const NUMBERS: [u16; 2] = [8, 3];
/// One locked job for so many others.
const PER_LOCKED: u32 = 10;
/// Locked jobs of one call.
const LOCKED_BATCH: u32 = 10;
/// How fast jobs come in.
const JOBS_PER_SECOND: u32 = 5_000;

impl Drill<'_> {
    /// Streams jobs in for as long as the number changes.
    pub(crate) async fn shards(&mut self) -> Outcome<()> {
        let over = Duration::from_secs(1) * self.profile.jobs / JOBS_PER_SECOND;
        let store = RedisStore::open(&self.place.url, Clock::System).await?;
        self.spawn_workers()?;
        let begin = Instant::now();
        let locked = self.profile.jobs / PER_LOCKED;
        let streamed = self.profile.jobs - locked;
        for first in 1..=self.profile.producers {
            let over_ms = u64::try_from(over.as_millis())?;
            let numbers = [streamed, first, self.profile.producers].map(u64::from);
            let args: Vec<String> = numbers.iter().chain([&over_ms]).map(u64::to_string).collect();
            self.spawn("stream", &args)?;
        }
        let locked =
            tokio::spawn(stream_locked(self.client.clone(), streamed, locked, over, self.dir.clone()));
        for number in NUMBERS {
            tokio::time::sleep(over / (NUMBERS.len() as u32 + 1)).await;
            let (change, came) = (Instant::now(), self.count().await?);
            store.reshard(number).await?;
            eprintln!("{number} shards after {} ms", change.elapsed().as_millis());
            self.expect_alive()?;
            if came == 0 || !self.goes_on("stream")? {
                return Err("no jobs were there, or none came any more: nothing is shown".into());
            }
        }
        self.end_of("stream")?;
        locked.await??;
        let rate = f64::from(self.profile.jobs) / begin.elapsed().as_secs_f64();
        eprintln!("{rate:.0} jobs/s came in");
        for shard in store.shards().await?.shards {
            eprintln!("shard {}: {} jobs, takes jobs: {}", shard.number, shard.jobs, shard.is_open);
        }
        Ok(())
    }
}

/// Hands over `jobs` locked jobs in the course of `over`, numbered from `first` + 1 on.
async fn stream_locked(
    client: Client,
    first: u32,
    jobs: u32,
    over: Duration,
    dir: PathBuf,
) -> punctual::Result<()> {
    let mut drops = tokio::time::interval((over * LOCKED_BATCH / jobs.max(1)).max(Duration::from_millis(1)));
    for at in (0..jobs).step_by(LOCKED_BATCH as usize) {
        drops.tick().await;
        let batch = (at..jobs.min(at + LOCKED_BATCH)).map(|n| jobs::locked(first + 1 + n, &dir));
        client.push(batch.collect()).await?;
    }
    Ok(())
}
