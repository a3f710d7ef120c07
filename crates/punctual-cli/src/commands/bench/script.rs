//! The reference on Redis: the bare scripts of a queue, on the same server.
//!
//! One hash of payloads, one sorted set of due times, one of leases; 100 jobs a call. No limits, no unique keys, no order
//! but time, no fences, no counters, no repetition of a lost call, no wake-up.

use std::time::{Duration, Instant};

use anyhow::Result;
use redis::{Script, aio::MultiplexedConnection};

use super::{
    reference::Reference,
    server::{Server, Usage},
};

/// Jobs of one call.
const BATCH: usize = 100;
/// Enqueues in one round trip, so that the server never waits for the next.
const AHEAD: usize = 4;
/// A life's lease, in milliseconds.
const LEASE_MS: u64 = 15_000;

/// KEYS: payloads, due times. ARGV: id, due time and payload of each job.
pub(super) const ENQUEUE: &str = "
local bodies, dues = {}, {}
for i = 1, #ARGV, 3 do
    local n = #bodies
    bodies[n + 1], bodies[n + 2] = ARGV[i], ARGV[i + 2]
    dues[n + 1], dues[n + 2] = ARGV[i + 1], ARGV[i]
end
redis.call('HSET', KEYS[1], unpack(bodies))
redis.call('ZADD', KEYS[2], unpack(dues))";
/// KEYS: payloads, due times, leases. ARGV: the time, the end of the leases, how many. Answers ids and payloads.
pub(super) const RESERVE: &str = "
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
if not ids[1] then return {} end
local leases = {}
for i, id in ipairs(ids) do leases[2 * i - 1], leases[2 * i] = ARGV[2], id end
redis.call('ZREM', KEYS[2], unpack(ids))
redis.call('ZADD', KEYS[3], unpack(leases))
return {ids, redis.call('HMGET', KEYS[1], unpack(ids))}";
/// KEYS: payloads, leases. ARGV: ids.
pub(super) const ACK: &str = "
redis.call('ZREM', KEYS[2], unpack(ARGV))
redis.call('HDEL', KEYS[1], unpack(ARGV))";

/// The three scripts on keys that begin with a prefix.
struct Bare {
    connection: MultiplexedConnection,
    enqueue: Script,
    reserve: Script,
    ack: Script,
    bodies: String,
    dues: String,
    leases: String,
}

/// Measures all of it; removes its keys unless it fails.
pub(super) async fn measure(
    server: &Server,
    prefix: &str,
    jobs: usize,
    payload_bytes: usize,
) -> Result<Reference> {
    let bare = Bare {
        connection: server.connection(),
        enqueue: Script::new(ENQUEUE),
        reserve: Script::new(RESERVE),
        ack: Script::new(ACK),
        bodies: format!("{prefix}j"),
        dues: format!("{prefix}t"),
        leases: format!("{prefix}l"),
    };
    let rate = |took: Duration| jobs as f64 / took.as_secs_f64();
    let before = server.usage().await?;
    let (insert, in_order) = bare.lives(jobs, payload_bytes, BATCH, |n| n as u64).await?;
    let cost = server.usage().await?.since(before, jobs);
    let (_, random) = bare.lives(jobs, payload_bytes, BATCH, |_| fastrand::u64(0..1 << 40)).await?;
    let singles = (jobs / 50).max(1);
    let before: Usage = server.usage().await?;
    bare.lives(singles, payload_bytes, 1, |n| n as u64).await?;
    let single = server.usage().await?.since(before, singles);
    server.remove(prefix).await?;
    Ok(Reference {
        insert_per_s: rate(insert),
        lives_per_s: rate(in_order),
        lives_random_due_per_s: rate(random),
        server_us_per_life: Some(cost.us),
        server_cpu_us_per_life: Some(cost.cpu_us),
        server_us_per_life_single: Some(single.us),
        server_cpu_us_per_life_single: Some(single.cpu_us),
    })
}

impl Bare {
    /// Times of all enqueues, and of whole lives.
    async fn lives(
        &self,
        jobs: usize,
        payload_bytes: usize,
        batch: usize,
        due: impl Fn(usize) -> u64,
    ) -> Result<(Duration, Duration)> {
        let body = vec![b'1'; payload_bytes];
        let mut connection = self.connection.clone();
        let mut load = redis::pipe();
        for script in [&self.enqueue, &self.reserve, &self.ack] {
            load.load_script(script).ignore();
        }
        let () = load.query_async(&mut connection).await?;

        let begin = Instant::now();
        // One by one also means one call after the other.
        let ahead = if batch == 1 { 1 } else { AHEAD };
        for from in (0..jobs).step_by(batch * ahead) {
            let mut calls = redis::pipe();
            for from in (from..jobs.min(from + batch * ahead)).step_by(batch) {
                let mut call = self.enqueue.prepare_invoke();
                call.key(&self.bodies).key(&self.dues);
                for n in from..jobs.min(from + batch) {
                    // As long as a job's id, and as different.
                    let id = [(n as u64).to_be_bytes(), fastrand::u64(..).to_be_bytes()].concat();
                    call.arg(id).arg(due(n)).arg(&body);
                }
                calls.invoke_script(&call).ignore();
            }
            let () = calls.query_async(&mut connection).await?;
        }
        let inserted = begin.elapsed();

        let mut ended: Vec<Vec<u8>> = Vec::new();
        loop {
            let mut calls = redis::pipe();
            if !ended.is_empty() {
                calls.invoke_script(self.ack.key(&self.bodies).key(&self.leases).arg(&ended)).ignore();
            }
            let mut reserve = self.reserve.prepare_invoke();
            reserve.key(&self.bodies).key(&self.dues).key(&self.leases);
            calls.invoke_script(reserve.arg("+inf").arg(LEASE_MS).arg(batch));
            let (reserved,): (Vec<Vec<Vec<u8>>>,) = calls.query_async(&mut connection).await?;
            let Some(ids) = reserved.into_iter().next() else { break };
            ended = ids;
        }
        Ok((inserted, begin.elapsed()))
    }
}
