//! The drill in which the number of the store's shards changes from 1 to 8 and then to 3, under workers and producers that
//! go on.

use std::time::{Duration, Instant};

use punctual::store::{clock::Clock, redis::RedisStore};

use crate::drill::{Drill, Outcome};

/// The numbers of shards, one after another.
const NUMBERS: [u16; 2] = [8, 3];
/// How fast jobs come in.
const JOBS_PER_SECOND: u32 = 5_000;

impl Drill<'_> {
    /// Streams jobs in for as long as the number changes.
    pub(crate) async fn shards(&mut self) -> Outcome<()> {
        let over = Duration::from_secs(1) * self.profile.jobs / JOBS_PER_SECOND;
        let store = RedisStore::open(&self.place.url, Clock::System).await?;
        self.spawn_workers()?;
        let begin = Instant::now();
        for first in 1..=self.profile.producers {
            self.spawn_stream(first, over)?;
        }
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
        let rate = f64::from(self.profile.jobs) / begin.elapsed().as_secs_f64();
        eprintln!("{rate:.0} jobs/s came in");
        for shard in store.shards().await?.shards {
            eprintln!("shard {}: {} jobs, takes jobs: {}", shard.number, shard.jobs, shard.is_open);
        }
        Ok(())
    }
}
