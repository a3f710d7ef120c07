//! The reference: a rate limiter and a leaderboard on Redis as articles describe them. They have no names, checks or repeated calls.
//! The limiter uses the caller's clock, and the board has no bound.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use redis::{Script, aio::MultiplexedConnection};

/// A sorted set of calls for each key. KEYS: it. ARGV: the time, the period, how many, a member of its own.
const ALLOW: &str = "
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1] - ARGV[2])
if tonumber(ARGV[3]) <= redis.call('ZCARD', KEYS[1]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";
/// KEYS: this hour. ARGV: how much, the member, how long the hour is kept.
const ADD: &str = "
redis.call('ZINCRBY', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])";
/// KEYS: the list, then all hours. ARGV: how many.
const TOP: &str = "
redis.call('ZUNIONSTORE', KEYS[1], #KEYS - 1, unpack(KEYS, 2))
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')";

const HOUR_S: u64 = 3_600;

/// Limits by scripts.
#[derive(Clone)]
pub(super) struct Limiter {
    connection: MultiplexedConnection,
    prefix: String,
    allow: Arc<Script>,
}

impl Limiter {
    pub(super) fn new(connection: MultiplexedConnection, prefix: &str) -> Self {
        Self { connection, prefix: format!("{prefix}limit:"), allow: Arc::new(Script::new(ALLOW)) }
    }

    pub(super) async fn is_allowed(&self, key: &str, max: u32, period_ms: u64) -> Result<bool> {
        let (mut connection, now_ms) = (self.connection.clone(), now().as_millis() as u64);
        let mut call = self.allow.key(format!("{}{key}", self.prefix));
        call.arg(now_ms).arg(period_ms).arg(max).arg(format!("{now_ms}-{:016x}", fastrand::u64(..)));
        let allowed: u32 = call.invoke_async(&mut connection).await?;
        Ok(allowed == 1)
    }
}

/// A board of the last hours by scripts.
#[derive(Clone)]
pub(super) struct Board {
    connection: MultiplexedConnection,
    prefix: String,
    hours: u64,
    add: Arc<Script>,
    top: Arc<Script>,
}

impl Board {
    pub(super) fn new(connection: MultiplexedConnection, prefix: &str, hours: u16) -> Self {
        let [add, top] = [ADD, TOP].map(|text| Arc::new(Script::new(text)));
        Self { connection, prefix: format!("{prefix}board:"), hours: hours.into(), add, top }
    }

    pub(super) async fn add(&self, member: &str, by: i64) -> Result<()> {
        let mut connection = self.connection.clone();
        let mut call = self.add.key(self.hour(0));
        call.arg(by).arg(member).arg(self.hours * HOUR_S);
        let () = call.invoke_async(&mut connection).await?;
        Ok(())
    }

    /// The highest, with their scores.
    pub(super) async fn top(&self, n: usize) -> Result<Vec<(String, i64)>> {
        let mut connection = self.connection.clone();
        let mut call = self.top.prepare_invoke();
        call.key(format!("{}list", self.prefix));
        for back in 0..self.hours {
            call.key(self.hour(back));
        }
        Ok(call.arg(n).invoke_async(&mut connection).await?)
    }

    fn hour(&self, back: u64) -> String {
        format!("{}{}", self.prefix, now().as_secs() / HOUR_S - back)
    }
}

fn now() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
