//! `doctor`: the store checks its servers. It changes only keys of its own, which expire by themselves.

mod notification;
mod rights;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{Pipeline, Value};
use tokio::time::{Instant, timeout};

use super::identity;
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        time::Timestamp,
    },
    store::{
        Check, CheckLevel, Durability, IDENTITY_NONE,
        clock::{Clock, told_ahead, was_ahead},
        redis::{
            connection::{
                address::Address,
                info::Info,
                preflight::{self, FOREIGN_KEY_HINT, Seen},
            },
            scripts::reply::Reply,
            sharded::shard::Shard,
        },
    },
};

/// The percentage of used memory from which on a server counts as nearly full.
const NEARLY_FULL_PERCENT: u64 = 80;
/// How far the server's clock can be from this machine's before readers are misled.
const CLOCK_APART_MAX: Duration = Duration::from_secs(1);
/// The number of round trips; the shortest counts.
const ROUND_TRIPS: usize = 3;
/// How long the check of a shard can take. A cluster that is still forming is asked again and again.
const LOOK_MAX: Duration = Duration::from_secs(15);
/// How many shards with the same problem are named.
const SHARDS_NAMED_MAX: usize = 8;
/// The keys of a shard that grow with what jobs hold: records, histories and payloads.
const LARGE_KEYS: [&str; 3] = ["j", "x", "b"];
/// The longest value that a server accepts unless it is told otherwise (`proto-max-bulk-len`), in bytes.
const VALUE_BYTES_MAX: u64 = 512 << 20;
/// The programs for which the store is made.
const MADE_FOR: [&str; 2] = ["Redis", "Valkey"];

/// Checks the first shard and its server in full, then the other shards and servers for problems. `shown`: the
/// store's address as it is shown.
pub(super) async fn examine(shards: &[Arc<Shard>], shown: &str, level: Durability) -> Result<Vec<Check>> {
    let Some((first, others)) = shards.split_first() else { return Ok(Vec::new()) };
    let mut checks = all(first, look(first).await?, shown, level).await?;
    let identity = identity::look(first).await?;
    checks.push(ok("identity", identity.map_or_else(|| IDENTITY_NONE.to_owned(), |found| found.to_string())));
    if others.is_empty() {
        return Ok(checks);
    }
    let looks = join_all(others.iter().map(|shard| timeout(LOOK_MAX, look(shard)))).await;
    let (mut servers, mut away, mut wrong) = (vec![first.link.node()], 0, Vec::new());
    for (shard, seen) in others.iter().zip(looks) {
        let node = shard.link.node();
        let told = match seen {
            Ok(Ok(seen)) if servers.contains(&node) => Ok(stranger(&seen).into_iter().collect()),
            Ok(Ok(seen)) => {
                servers.push(node);
                all(shard, seen, shown, level).await
            }
            Ok(Err(e)) => Err(e),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("no answer in {LOOK_MAX:?}"))),
        };
        match told {
            Ok(told) => {
                wrong.extend(
                    told.into_iter()
                        .filter(|check| check.level != CheckLevel::Ok)
                        .map(|check| (shard.number, check)),
                );
            }
            Err(e) => {
                away += 1;
                let fix = e.hint().unwrap_or("check that its server runs and answers");
                wrong.push((shard.number, fail("server", format!("cannot be checked: {e}"), fix)));
            }
        }
    }
    checks.extend(together(wrong));
    let text = match away {
        0 => format!("{} may hold jobs, on {}", count(shards.len(), "shard"), count(servers.len(), "server")),
        _ => format!("{} may hold jobs; {away} of them cannot be checked", count(shards.len(), "shard")),
    };
    checks.push(ok("shards", text));
    Ok(checks)
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Merges equal problems of several shards.
fn together(wrong: Vec<(u16, Check)>) -> Vec<Check> {
    let mut alike: Vec<(Vec<u16>, Check)> = Vec::new();
    for (shard, check) in wrong {
        match alike.iter_mut().find(|(_, told)| *told == check) {
            Some((shards, _)) => shards.push(shard),
            None => alike.push((vec![shard], check)),
        }
    }
    let named = |shards: &[u16]| {
        let numbers: Vec<String> = shards.iter().take(SHARDS_NAMED_MAX).map(u16::to_string).collect();
        let numbers = numbers.join(", ");
        match shards.len() {
            1 => format!("shard {numbers}"),
            n if n <= SHARDS_NAMED_MAX => format!("shards {numbers}"),
            n => format!("shards {numbers} and {} more", n - SHARDS_NAMED_MAX),
        }
    };
    let told = alike.into_iter();
    told.map(|(shards, check)| Check { text: format!("{}: {}", named(&shards), check.text), ..check })
        .collect()
}

async fn look(shard: &Shard) -> Result<Seen> {
    let answers = shard.link.ask_all(preflight::questions(&shard.address, shard.number)).await?;
    preflight::look(&shard.address, shard.number, answers)
}

/// Returns all checks of a shard and its server.
async fn all(shard: &Shard, seen: Seen, shown: &str, level: Durability) -> Result<Vec<Check>> {
    let keys = keys(&seen);
    let info = seen.info;
    let settings = Settings::read(shard).await?;
    let mut checks = vec![server(shard, shown).await?];
    if info.is_empty() {
        let text = "this user may not run INFO, or the server has renamed it: version, role, memory, eviction and \
                    persistence are unknown";
        checks.push(warn("info", text, "allow the user to: redis-cli ACL SETUSER NAME +info"));
    } else {
        checks.extend([
            version(&info),
            role(&info, &shard.address),
            eviction(&info),
            memory(&info),
            persistence(&info, &settings),
        ]);
    }
    checks.push(durability(level, &info, &settings));
    checks.push(keys);
    if shard.address.is_cluster() {
        checks.push(size(shard).await?);
    }
    checks.push(rights::try_all(shard).await?);
    checks.push(clock(shard).await?);
    checks.push(notification::hear(shard).await?);
    Ok(checks)
}

/// Reports a key of a shard with foreign content.
fn stranger(seen: &Seen) -> Option<Check> {
    seen.strangers.first().map(|stranger| fail("keys", stranger.to_string(), FOREIGN_KEY_HINT))
}

/// Checks whether the keys of a shard are ours.
fn keys(seen: &Seen) -> Check {
    stranger(seen).unwrap_or_else(|| {
        if seen.knows_types {
            ok("keys", "no other program uses a key of this store")
        } else {
            warn("keys", "this user may not run TYPE", "redis-cli ACL SETUSER NAME +type")
        }
    })
}

/// Makes a check.
fn check(level: CheckLevel, name: &'static str, text: impl Into<String>, fix: Option<&str>) -> Check {
    Check { level, name: name.into(), text: text.into(), fix: fix.map(str::to_owned) }
}

fn ok(name: &'static str, text: impl Into<String>) -> Check {
    check(CheckLevel::Ok, name, text, None)
}

fn warn(name: &'static str, text: impl Into<String>, fix: &str) -> Check {
    check(CheckLevel::Warn, name, text, Some(fix))
}

fn fail(name: &'static str, text: impl Into<String>, fix: &str) -> Check {
    check(CheckLevel::Fail, name, text, Some(fix))
}

/// Values that only CONFIG reports; unknown if this user may not ask.
#[derive(Debug, Default)]
struct Settings {
    appendfsync: Option<String>,
    save: Option<String>,
    /// Whether it starts with a log that ends within a write.
    load_truncated: Option<String>,
}

impl Settings {
    async fn read(shard: &Shard) -> Result<Self> {
        let names = ["appendfsync", "save", "aof-load-truncated"];
        let mut pipeline = Pipeline::with_capacity(names.len());
        for name in names {
            pipeline.cmd("CONFIG").arg("GET").arg(name);
        }
        let mut answers = shard.link.ask_all(pipeline).await?.into_iter().map(setting);
        let mut next = || answers.next().flatten();
        Ok(Self { appendfsync: next(), save: next(), load_truncated: next() })
    }
}

/// Returns the value of a pair of name and value.
fn setting(answer: Value) -> Option<String> {
    let mut reply = Reply::of(answer).ok()?;
    reply.bytes().ok()?;
    reply.bytes().ok().map(|value| String::from_utf8_lossy(&value).into_owned())
}

async fn server(shard: &Shard, shown: &str) -> Result<Check> {
    let mut least = Duration::MAX;
    for _ in 0..ROUND_TRIPS {
        let begin = Instant::now();
        shard.link.command(redis::cmd("TIME")).await?;
        least = least.min(begin.elapsed());
    }
    // The right to read it does not imply the right to use it.
    let shown = shown.trim_end_matches("eviction=allowed").trim_end_matches(['?', '&']);
    Ok(ok("server", format!("{shown}, answers in {:.2} ms", least.as_secs_f64() * 1e3)))
}

fn version(info: &Info) -> Check {
    let program = info.program();
    if MADE_FOR.contains(&program.name) {
        return ok("version", program.to_string());
    }
    let text = format!("{program}: punctual supports only Redis and Valkey");
    warn("version", text, "use Redis or Valkey")
}

fn role(info: &Info, address: &Address) -> Check {
    if info.is_replica() {
        let host = info.get("master_host").unwrap_or("another server");
        let text = format!("a replica of {host}, which accepts no jobs");
        return fail("role", text, "name the primary in the address");
    }
    if preflight::is_strange_cluster(info, address) {
        return fail("role", "part of a cluster", "write redis+cluster:// instead of redis://");
    }
    match info.number("connected_slaves") {
        None | Some(0) => ok("role", "primary, no replicas"),
        Some(1) => ok("role", "primary, 1 replica"),
        Some(n) => ok("role", format!("primary, {n} replicas")),
    }
}

fn eviction(info: &Info) -> Check {
    let policy = info.get("maxmemory_policy").unwrap_or("unknown");
    if info.eviction().is_none() {
        return ok("eviction", format!("maxmemory-policy is {policy}"));
    }
    let limit = if info.is("maxmemory", "0") { ", once it has a limit (maxmemory)" } else { "" };
    let text = format!("maxmemory-policy is {policy}: Redis may delete jobs when its memory is full{limit}");
    fail("eviction", text, "redis-cli CONFIG SET maxmemory-policy noeviction")
}

fn memory(info: &Info) -> Check {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let used = info.number("used_memory").unwrap_or(0);
    match info.number("maxmemory") {
        None | Some(0) => ok("memory", format!("{} in use, no limit", mib(used))),
        Some(limit) => {
            let percent = used.saturating_mul(100) / limit;
            let text = format!("{} of {} in use, {percent} %", mib(used), mib(limit));
            if percent < NEARLY_FULL_PERCENT {
                return ok("memory", text);
            }
            let fix = "give the server more memory (maxmemory), or keep fewer ended jobs: punctual queue set NAME …";
            warn("memory", text + ": a full server accepts no more jobs", fix)
        }
    }
}

/// Checks whether a shard can move to another node of a cluster. Redis sends each key as one value, and the other node refuses one that is
/// too long. Then a part of the shard has moved, and calls that need both parts fail until the rest follows.
async fn size(shard: &Shard) -> Result<Check> {
    let mut pipeline = Pipeline::with_capacity(1 + LARGE_KEYS.len());
    pipeline.cmd("CONFIG").arg("GET").arg("proto-max-bulk-len");
    for key in LARGE_KEYS {
        pipeline.cmd("MEMORY").arg("USAGE").arg(shard.key(key));
    }
    let mut answers = shard.link.ask_all(pipeline).await?.into_iter();
    let limit = answers.next().and_then(setting).and_then(|bytes| bytes.parse().ok());
    let used = answers.map(|answer| match answer {
        Value::Int(bytes) => u64::try_from(bytes).ok(),
        Value::Nil => Some(0),
        _ => None,
    });
    let used: Option<Vec<u64>> = used.collect();
    Ok(judge_size(used.map(|used| used.into_iter().max().unwrap_or(0)), limit.unwrap_or(VALUE_BYTES_MAX)))
}

/// `used`: the memory of the largest key, which is somewhat more than what is sent; `None` if this user may not ask.
fn judge_size(used: Option<u64>, limit: u64) -> Check {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    match used {
        None => ok("size", "unknown, because this user may not run MEMORY USAGE"),
        Some(used) if used < limit => ok(
            "size",
            format!("its largest key takes {} MiB, so the shard can move to another node", mib(used)),
        ),
        Some(used) => warn(
            "size",
            format!(
                "its largest key takes {} MiB, and a node accepts no key of {} MiB: a move to another node stops half-way",
                mib(used),
                mib(limit)
            ),
            "before a move, redis-cli CONFIG SET proto-max-bulk-len 8gb on both nodes; for smaller keys, use more shards: punctual shards N",
        ),
    }
}

/// Checks what a crash of the server leaves.
fn persistence(info: &Info, settings: &Settings) -> Check {
    let has_log = info.is("aof_enabled", "1");
    let snapshots = match settings.save.as_deref() {
        Some("") => "no snapshots",
        Some(_) => "snapshots",
        None => "snapshots unknown",
    };
    let failed = |name: &str| info.get(name).is_some_and(|status| status != "ok");
    if has_log && failed("aof_last_write_status") {
        let text = "appendonly yes, and the last write of the log failed: the server accepts no jobs until it succeeds";
        return fail("persistence", text, "check the server's disk and its log");
    }
    if failed("rdb_last_bgsave_status") {
        let text = "the last snapshot failed: the server may refuse all writes until one succeeds";
        return fail("persistence", text, "check the server's disk, memory and log");
    }
    if has_log {
        let synced = settings.appendfsync.as_deref().unwrap_or("unknown");
        let text = format!("appendonly yes, appendfsync {synced}, {snapshots}");
        return match settings.load_truncated.as_deref() {
            // Seen with Redis 7.0.15 and 8.0.2, and with Valkey 8.1.1, which fixed it later: valkey-io/valkey#4342.
            Some("yes") => warn(
                "persistence",
                text + ", aof-load-truncated yes: of a call that a crash cut off within the log, most servers do a part \
                        when they start for the second time",
                "repair the log before each start: docs/guide/5-redis.md, Durability",
            ),
            Some(_) => ok("persistence", text),
            None => ok("persistence", text + ", aof-load-truncated unknown"),
        };
    }
    let lost = match settings.save.as_deref() {
        Some("") => "every job is lost when the server ends: no snapshots either",
        _ => "every job since the last snapshot is lost on a crash of the server",
    };
    let fix = "redis-cli CONFIG SET appendonly yes, and the same in the server's file";
    warn("persistence", format!("appendonly no: {lost}"), fix)
}

/// Checks the durability in force, and what it is worth on this server (S1).
fn durability(level: Durability, info: &Info, settings: &Settings) -> Check {
    let name = level.name();
    let (log, synced) = (info.is("aof_enabled", "1"), settings.appendfsync.as_deref());
    if level == Durability::Full {
        if info.is_empty() || (log && synced == Some("always")) {
            return ok("durability", format!("{name}: each job is on the server's disk when it is accepted"));
        }
        let text = format!("{name} is promised, but the server does not sync each write any more");
        return fail("durability", text, "redis-cli CONFIG SET appendonly yes appendfsync always");
    }
    let worth = match (log, synced) {
        (true, Some("always")) => "a crash of any process loses nothing; durability=full is possible",
        (true, Some("everysec")) => {
            "a crash of the server may lose its last 2 s; full needs appendfsync always"
        }
        _ => "a crash of a client loses nothing; a crash of the server loses what is not on its disk",
    };
    ok("durability", format!("{name}: {worth}"))
}

/// Returns the last fence of a shard, which follows two times in the first row of `base.lua`; 0 if there is none, or
/// if the clock is not the server's.
async fn last_fence(shard: &Shard) -> Result<u64> {
    if !matches!(shard.clock, Clock::System) {
        return Ok(0);
    }
    let mut read = redis::cmd("HGET");
    read.arg(shard.key("s")).arg("turn");
    let Value::BulkString(row) = shard.link.command(read).await? else { return Ok(0) };
    let fence = row.get(14..21).unwrap_or_default();
    Ok(fence.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

/// Checks the clocks: jobs run by the server's clock, and people read this machine's.
async fn clock(shard: &Shard) -> Result<Check> {
    let mut before = Clock::System.now();
    let mut reply = Reply::of(shard.link.command(redis::cmd("TIME")).await?)?;
    let after = Clock::System.now();
    let (seconds, micros) = (reply.number()?, reply.number()?);
    let server = Timestamp::saturating_from_ms(seconds * 1_000 + micros / 1_000);
    // The server's clock was read somewhere in between.
    before = before.min(after);
    let ahead = was_ahead(last_fence(shard).await?, server);
    let (apart, which) =
        if server < before { (before.since(server), "behind") } else { (server.since(after), "ahead of") };
    if CLOCK_APART_MAX < ahead {
        let (text, fix) = told_ahead(ahead);
        return Ok(warn("clock", format!("the server's {text}"), fix));
    }
    if apart <= CLOCK_APART_MAX {
        return Ok(ok(
            "clock",
            format!("the server's and this machine's differ by {} ms", apart.as_millis()),
        ));
    }
    let text =
        format!("the server's is {} ms {which} this machine's; jobs run by the server's", apart.as_millis());
    Ok(warn("clock", text, "synchronise the clocks of both machines (NTP)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(lines: &str) -> Info {
        Info::parse(lines.as_bytes())
    }

    fn settings(appendfsync: &str, save: &str) -> Settings {
        let load_truncated = Some("no".to_owned());
        Settings { appendfsync: Some(appendfsync.to_owned()), save: Some(save.to_owned()), load_truncated }
    }

    #[track_caller]
    fn says(check: &Check, level: CheckLevel, words: &str) {
        assert_eq!(check.level, level, "{check:?}");
        assert!(check.text.contains(words), "{check:?}");
        assert_eq!(check.fix.is_some(), level != CheckLevel::Ok, "{check:?}");
    }

    #[test]
    fn a_shard_that_cannot_move_is_said() {
        use CheckLevel::{Ok, Warn};

        says(&judge_size(Some((512 << 20) - 1), VALUE_BYTES_MAX), Ok, "takes 512 MiB, so the shard can move");
        says(
            &judge_size(Some(512 << 20), VALUE_BYTES_MAX),
            Warn,
            "takes 512 MiB, and a node accepts no key of 512 MiB",
        );
        says(&judge_size(None, VALUE_BYTES_MAX), Ok, "unknown");
    }

    #[test]
    fn what_may_lose_jobs_is_said() {
        use CheckLevel::{Fail, Ok, Warn};

        says(&eviction(&info("maxmemory_policy:noeviction\nmaxmemory:0")), Ok, "noeviction");
        says(&eviction(&info("maxmemory_policy:allkeys-lru\nmaxmemory:9")), Fail, "may delete jobs");
        says(&eviction(&info("maxmemory_policy:allkeys-lru\nmaxmemory:0")), Fail, "once it has a limit");

        says(&persistence(&info("aof_enabled:0"), &settings("everysec", "")), Warn, "every job is lost");
        says(
            &persistence(&info("aof_enabled:0"), &settings("everysec", "60 1")),
            Warn,
            "since the last snapshot",
        );
        says(
            &persistence(&info("aof_enabled:1"), &settings("everysec", "")),
            Ok,
            "appendfsync everysec, no snapshots",
        );
        says(&persistence(&info("aof_enabled:1"), &Settings::default()), Ok, "appendfsync unknown");
        says(&persistence(&info("aof_enabled:1"), &Settings::default()), Ok, "aof-load-truncated unknown");
        let cut = Settings { load_truncated: Some("yes".to_owned()), ..settings("always", "") };
        says(&persistence(&info("aof_enabled:1"), &cut), Warn, "when they start for the second time");
        let broken = info("aof_enabled:1\naof_last_write_status:err");
        says(&persistence(&broken, &settings("always", "")), Fail, "the last write of the log failed");
        let broken = info("aof_enabled:1\nrdb_last_bgsave_status:err");
        says(&persistence(&broken, &settings("always", "")), Fail, "the last snapshot failed");
    }

    #[test]
    fn what_is_wrong_alike_with_several_shards_is_told_once() {
        let wrong = |shard: u16| (shard, fail("server", format!("{} % full", shard / 100), "more"));
        let texts = |shards: &[u16]| -> Vec<String> {
            together(shards.iter().map(|shard| wrong(*shard)).collect())
                .into_iter()
                .map(|check| check.text)
                .collect()
        };
        assert_eq!(texts(&[]), [""; 0]);
        assert_eq!(texts(&[7]), ["shard 7: 0 % full"]);
        assert_eq!(texts(&[1, 100, 2]), ["shards 1, 2: 0 % full", "shard 100: 1 % full"]);
        let many: Vec<u16> = (1..=10).collect();
        assert_eq!(texts(&many), ["shards 1, 2, 3, 4, 5, 6, 7, 8 and 2 more: 0 % full"]);
    }

    #[test]
    fn the_level_is_said_with_what_it_is_worth() {
        use CheckLevel::{Fail, Ok};

        let (log, none) = (info("aof_enabled:1"), info("aof_enabled:0"));
        says(&durability(Durability::Full, &log, &settings("always", "")), Ok, "full");
        says(&durability(Durability::Full, &log, &settings("everysec", "")), Fail, "full is promised");
        says(&durability(Durability::Full, &none, &settings("always", "")), Fail, "full is promised");
        says(&durability(Durability::Fast, &log, &settings("everysec", "")), Ok, "its last 2 s");
        says(&durability(Durability::Fast, &log, &settings("always", "")), Ok, "durability=full is possible");
        says(&durability(Durability::Fast, &none, &settings("everysec", "")), Ok, "what is not on its disk");
    }

    #[test]
    fn a_server_that_is_full_or_none_of_those_tested_or_a_replica_is_told() {
        use CheckLevel::{Fail, Ok, Warn};

        says(&memory(&info("used_memory:1048576\nmaxmemory:0")), Ok, "1.0 MiB in use, no limit");
        says(&memory(&info("used_memory:50\nmaxmemory:100")), Ok, "50 %");
        says(&memory(&info("used_memory:80\nmaxmemory:100")), Warn, "80 %");
        says(&version(&info("redis_version:7.2.4\nvalkey_version:8.1.0")), Ok, "Valkey 8.1.0");
        says(&version(&info("redis_version:6.2.11\ndragonfly_version:df-v1.24.0")), Warn, "Dragonfly 1.24.0");
        let address = |url| Address::parse(url).unwrap();
        let role = |text: &str| role(&info(text), &address("redis://cache"));
        says(&role("role:master\nconnected_slaves:2"), Ok, "2 replicas");
        says(&role("role:slave\nmaster_host:cache"), Fail, "a replica of cache");
        says(&role("role:master\ncluster_enabled:1"), Fail, "cluster");
    }
}
