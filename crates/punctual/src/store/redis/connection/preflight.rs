//! Checks before a store is opened, and again with each later connection, because another server may have taken over. Refused
//! are: a server that evicts jobs, one that is too old, and one that is part of an unnamed cluster. When the store is opened, keys
//! with foreign content are refused, too. All checks take one round trip.
//!
//! What the server does not let this user ask is no reason to refuse. `doctor` reports what could not be checked.

use redis::{Cmd, Pipeline, RedisResult, Value};

use crate::{
    core::error::{Error, ErrorKind, Result},
    store::redis::{
        connection::{
            address::{Address, Topology},
            fault::{self, NOPERM, UNKNOWN_COMMAND},
            info::Info,
        },
        scripts::{COMMON_KEYS, DOC_KEYS, LOCK_KEYS},
    },
};

/// The oldest version with all commands that the scripts use.
const VERSION_MIN: (u32, u32) = (6, 2);
/// What to do about a key with foreign content.
pub(crate) const FOREIGN_KEY_HINT: &str = "if another program owns this key, choose another prefix=… in the address; otherwise rename the key \
    (redis-cli RENAME KEY KEY:found), then run punctual audit --repair";

/// The keys that are sorted sets; the others are hashes.
const SORTED: [&str; 12] = ["t", "o", "l", "e", "v", "k", "a", "n", "g", "h", "f", "lz"];

fn keys() -> impl Iterator<Item = &'static str> {
    COMMON_KEYS.into_iter().chain(DOC_KEYS).chain(LOCK_KEYS)
}

/// Evaluates the answers about the server and the keys.
///
/// # Errors
/// `Unsupported` for a server that cannot keep the promises, `Corrupt` for a key of the wrong type.
pub(crate) fn check(address: &Address, shard: u16, answers: Vec<Value>) -> Result<()> {
    let seen = look(address, shard, answers)?;
    check_server(&seen.info, address).map_err(Error::from)?;
    match seen.strangers.into_iter().next() {
        Some(stranger) => {
            Err(Error::new(ErrorKind::Corrupt, stranger.to_string()).with_hint(FOREIGN_KEY_HINT))
        }
        None => Ok(()),
    }
}

/// Why a server cannot keep the promises of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unsuitable {
    message: String,
    hint: String,
}

impl Unsuitable {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

impl From<Unsuitable> for Error {
    fn from(Unsuitable { message, hint }: Unsuitable) -> Self {
        Self::new(ErrorKind::Unsupported, message).with_hint(hint)
    }
}

/// Returns the question for [`check_again`].
pub(crate) fn question() -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("INFO");
    cmd
}

/// Evaluates the answer of a server that has taken over, or was started again: its version and settings can be others. The keys
/// are those of the server before it.
///
/// # Errors
/// Why it was not answered; or, inside, why the server is not used.
pub(crate) fn check_again(address: &Address, answer: Value) -> RedisResult<Result<(), Unsuitable>> {
    match answer {
        Value::BulkString(text) => Ok(check_server(&Info::parse(&text), address)),
        Value::ServerError(refusal) if refusal.code() != NOPERM => Err(refusal.into()),
        // This user may not ask.
        _ => Ok(Ok(())),
    }
}

/// The result of the check.
pub(crate) struct Seen {
    pub(crate) info: Info,
    pub(crate) strangers: Vec<Stranger>,
    /// Whether the types of the keys could be read.
    pub(crate) knows_types: bool,
}

/// A key with one of our names and foreign content.
pub(crate) struct Stranger {
    key: String,
    is: String,
    expected: &'static str,
}

impl std::fmt::Display for Stranger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key {:?} is a {}, where a {} of ours stands", self.key, self.is, self.expected)
    }
}

/// Returns the commands of the check, for one round trip.
pub(crate) fn questions(address: &Address, shard: u16) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(1 + keys().count());
    pipeline.cmd("INFO");
    for key in keys() {
        pipeline.cmd("TYPE").arg(address.key(shard, key));
    }
    pipeline
}

/// Reads the answers to [`questions`].
pub(crate) fn look(address: &Address, shard: u16, answers: Vec<Value>) -> Result<Seen> {
    let mut answers = answers.into_iter();
    let mut seen = Seen { info: Info::default(), strangers: Vec::new(), knows_types: true };
    if let Some(Value::BulkString(text)) = allowed(answers.next())? {
        seen.info = Info::parse(&text);
    }
    if is_strange_cluster(&seen.info, address) {
        // It may have the keys, or say where they are. Either way it is refused.
        return Ok(seen);
    }
    for (key, answer) in keys().zip(answers) {
        let Some(answer) = allowed(Some(answer))? else {
            seen.knows_types = false;
            continue;
        };
        let is = match answer {
            Value::SimpleString(kind) => kind,
            Value::BulkString(kind) => String::from_utf8_lossy(&kind).into_owned(),
            _ => return Err(fault::odd("TYPE")),
        };
        let expected = type_of(key);
        if is != "none" && is != expected {
            let key = String::from_utf8_lossy(&address.key(shard, key)).into_owned();
            seen.strangers.push(Stranger { key, is, expected });
        }
    }
    Ok(seen)
}

/// Returns an answer; `None` if this user may not ask, or if the server has renamed the command.
fn allowed(answer: Option<Value>) -> Result<Option<Value>> {
    match answer {
        Some(Value::ServerError(refusal)) if matches!(refusal.code(), NOPERM | UNKNOWN_COMMAND) => Ok(None),
        Some(Value::ServerError(refusal)) => Err(fault::refused("connect", &refusal)),
        answer => Ok(answer),
    }
}

fn type_of(key: &str) -> &'static str {
    if SORTED.contains(&key) { "zset" } else { "hash" }
}

/// Returns whether it is part of a cluster although the address names a single server.
pub(crate) fn is_strange_cluster(info: &Info, address: &Address) -> bool {
    info.is_of_a_cluster() && !matches!(address.topology(), Topology::Cluster { .. })
}

fn check_server(info: &Info, address: &Address) -> Result<(), Unsuitable> {
    if let Some(version) = info.redis_version().filter(|version| *version < VERSION_MIN) {
        let (major, minor) = VERSION_MIN;
        let message = format!("the server speaks the commands of Redis {}.{}", version.0, version.1);
        return Err(Unsuitable::new(message, format!("use Redis {major}.{minor} or later, or Valkey")));
    }
    if is_strange_cluster(info, address) {
        return Err(Unsuitable::new(
            "the server is part of a cluster",
            "write redis+cluster:// instead of redis://",
        ));
    }
    if let Some(policy) = info.eviction().filter(|_| !address.allows_eviction()) {
        let message =
            format!("the server deletes keys when its memory is full, and jobs with them: {policy}");
        return Err(Unsuitable::new(
            message,
            "redis-cli CONFIG SET maxmemory-policy noeviction; if jobs may be lost, add eviction=allowed to the address",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(info: &str, url: &str) -> Option<Error> {
        check_server(&Info::parse(info.as_bytes()), &Address::parse(url).unwrap()).err().map(Error::from)
    }

    #[test]
    fn each_key_is_of_the_type_that_the_scripts_say() {
        let keys = include_str!("../lua/key_names.lua");
        let said = |key: &str| {
            let mut rows =
                keys.lines().filter_map(|line| line.strip_prefix("--")?.split_once(&format!(" {key}  ")));
            rows.find_map(|(_, row)| row.split(' ').next()).expect(key).to_lowercase()
        };
        for key in super::keys() {
            assert_eq!(type_of(key), said(key), "{key}");
        }
    }

    #[test]
    fn servers_that_cannot_keep_the_promises_are_refused() {
        for (info, why) in [
            ("redis_version:6.0.16", "Redis 6.0"),
            ("redis_version:5.0.7", "Redis 5.0"),
            ("redis_version:7.4.1\nredis_mode:cluster", "a cluster"),
            ("redis_version:7.4.1\ncluster_enabled:1", "a cluster"),
            ("redis_version:7.4.1\nmaxmemory_policy:allkeys-lru", "allkeys-lru"),
            ("redis_version:7.4.1\nmaxmemory_policy:volatile-ttl", "volatile-ttl"),
        ] {
            let error = refused(info, "redis://cache").expect(info);
            assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Unsupported, true), "{info}");
            assert!(error.to_string().contains(why), "{error}");
        }
        for info in ["", "redis_version:6.2.0", "redis_version:unstable\nmaxmemory_policy:noeviction"] {
            assert!(refused(info, "redis://cache").is_none(), "{info}");
        }
        assert!(refused("maxmemory_policy:allkeys-lfu", "redis://cache?eviction=allowed").is_none());
    }

    #[test]
    fn what_is_not_allowed_is_not_seen_and_all_else_is_told() {
        let refusal = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        for line in
            ["NOPERM no permissions to run the 'info' command", "ERR unknown command 'INFO', with args: "]
        {
            assert_eq!(allowed(Some(refusal(line))).unwrap(), None, "{line}");
        }
        let loading = allowed(Some(refusal("LOADING Redis is loading the dataset in memory"))).unwrap_err();
        assert_eq!(loading.kind(), ErrorKind::Unavailable);
        let stranger = allowed(Some(refusal("NOAUTH Authentication required."))).unwrap_err();
        assert_eq!(stranger.kind(), ErrorKind::Unsupported);
    }
}
