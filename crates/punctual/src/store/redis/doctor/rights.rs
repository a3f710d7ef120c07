//! What the user of the store may do. It is tried on keys of our own: only an administrator could ask.

use redis::{Pipeline, Value};

use super::{fail, ok};
use crate::{
    core::error::Result,
    store::{
        Check,
        redis::{connection::fault::NOPERM, sharded::shard::Shard},
    },
};

/// Commands that a store needs, in an order in which none waits and all of it is gone at the end; `H` stands for a hash and
/// `Z` for a sorted set, `S` for a string.
const NEEDED: [&str; 32] = [
    "TIME",
    "HSET H f 1",
    // The milliseconds that it stays where its removal is not allowed.
    "PEXPIRE H 10000",
    "HGET H f",
    "HMGET H f",
    "HEXISTS H f",
    "HLEN H",
    "HSCAN H 0",
    "HINCRBY H f 1",
    "HDEL H f",
    "ZADD Z 0 m",
    "ZSCORE Z m",
    "ZCARD Z",
    "ZRANK Z m",
    "ZREMRANGEBYRANK Z 5 6",
    "ZLEXCOUNT Z - +",
    "ZRANGE Z 0 0",
    "ZRANGEBYLEX Z - + LIMIT 0 1",
    "ZRANGEBYSCORE Z 0 0 LIMIT 0 1",
    "ZREVRANGEBYLEX Z + - LIMIT 0 1",
    "ZREMRANGEBYLEX Z (x (y",
    // Pops what is there; waits for no time worth the name where ZADD was not allowed.
    "BZPOPMIN Z 0.001",
    "ZREM Z m",
    "SET S abc PX 10000",
    "GET S",
    "GETRANGE S 0 1",
    "STRLEN S",
    "APPEND S d",
    "SETRANGE S 0 x",
    "UNLINK S",
    "SCRIPT LOAD return",
    "EVALSHA 0000000000000000000000000000000000000000 0",
];

/// Tries all of them.
pub(super) async fn try_all(shard: &Shard) -> Result<Check> {
    let stem = format!("probe:{:016x}:", fastrand::u64(..));
    let [hash, zset, string] = ["h", "z", "s"].map(|kind| shard.key(&format!("{stem}{kind}")));
    let mut pipeline = Pipeline::with_capacity(NEEDED.len());
    for words in NEEDED {
        let cmd = pipeline.cmd(name(words));
        for word in words.split(' ').skip(1) {
            match word {
                "H" => cmd.arg(&hash),
                "Z" => cmd.arg(&zset),
                "S" => cmd.arg(&string),
                word => cmd.arg(word),
            };
        }
    }
    let answers = shard.link.ask_all(pipeline).await?;
    let user = shard.address.login().username().unwrap_or("default");
    Ok(judge(user, shard.address.prefix(), &answers))
}

fn judge(user: &str, prefix: &str, answers: &[Value]) -> Check {
    let is_refused = |answer: &&Value| matches!(answer, Value::ServerError(e) if e.code() == NOPERM);
    let refused: Vec<&str> = NEEDED
        .into_iter()
        .zip(answers)
        .filter(|(_, answer)| is_refused(answer))
        .map(|(words, _)| words)
        .collect();
    let on_keys = |words: &&str| takes_a_key(words);
    if refused.is_empty() {
        return ok("rights", format!("user {user} may do all that a store needs"));
    }
    let needed = NEEDED.iter().filter(|words| on_keys(words)).count();
    if refused.iter().filter(|words| on_keys(words)).count() == needed {
        let text = format!("user {user} may use no key that begins with {prefix}:");
        return fail("rights", text, &format!("redis-cli ACL SETUSER {user} ~{prefix}:*"));
    }
    let names: Vec<&str> = refused.iter().map(|words| name(words)).collect();
    let allow = names.join(" +").to_lowercase();
    let text = format!("user {user} may not: {}", names.join(", "));
    fail("rights", text, &format!("redis-cli ACL SETUSER {user} +{allow}"))
}

fn takes_a_key(words: &str) -> bool {
    words.split(' ').any(|word| matches!(word, "H" | "Z" | "S"))
}

fn name(words: &str) -> &str {
    words.split(' ').next().unwrap_or(words)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use crate::store::CheckLevel;

    #[test]
    fn all_that_scripts_call_is_tried() {
        let tried: BTreeSet<&str> = NEEDED.into_iter().map(name).collect();
        let mut paths = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/lua")];
        while let Some(path) = paths.pop() {
            if path.is_dir() {
                paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let text = fs::read_to_string(path).unwrap();
            for call in text.split("call('").skip(1) {
                let command = call.split('\'').next().unwrap();
                assert!(tried.contains(command), "{command} is not tried");
            }
        }
    }

    #[test]
    fn what_is_lacking_is_named() {
        let refusal = |code: &str| redis::parse_redis_value(format!("-{code} no\r\n").as_bytes()).unwrap();
        let answers = |refused: &[&str]| {
            let answer =
                |words: &str| if refused.contains(&name(words)) { refusal(NOPERM) } else { Value::Okay };
            NEEDED.map(answer)
        };
        assert_eq!(judge("ana", "pq", &answers(&[])).level, CheckLevel::Ok);
        // A full server, or a replica, refuses for other reasons, of which others tell.
        assert_eq!(judge("ana", "pq", &NEEDED.map(|_| refusal("READONLY"))).level, CheckLevel::Ok);
        let check = judge("ana", "pq", &answers(&["ZADD", "BZPOPMIN"]));
        assert_eq!(check.text, "user ana may not: ZADD, BZPOPMIN");
        assert_eq!(check.fix.as_deref(), Some("redis-cli ACL SETUSER ana +zadd +bzpopmin"));
        let keys: Vec<&str> = NEEDED.into_iter().filter(|words| takes_a_key(words)).map(name).collect();
        let check = judge("ana", "pq", &answers(&keys));
        assert_eq!(check.text, "user ana may use no key that begins with pq:");
    }
}
