//! `import`: queues that were made by hand, on a real server, each with what its write-up does.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redis::{Commands as _, FromRedisValue, cmd};
use serde_json::{Value, json};

use crate::{
    fixture::{Cli, Said, wait},
    redis::server::Server,
};

/// A time that is long gone, and one that is far, in seconds.
const PAST: u64 = 1_600_000_000;
const FAR: u64 = 4_102_444_800;

/// A server with an old queue, and a folder with a store.
struct Old {
    cli: Cli,
    server: Server,
    redis: redis::Connection,
}

impl Old {
    fn start() -> Self {
        let server = Server::start(&[]);
        let redis = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        Self { cli: Cli::new(), server, redis }
    }

    fn say<T: FromRedisValue>(&mut self, line: &str) -> T {
        let mut words = line.split(' ');
        let mut command = cmd(words.next().unwrap());
        for word in words {
            command.arg(word);
        }
        command.query(&mut self.redis).unwrap()
    }

    fn import(&self, line: &str) -> Said {
        self.cli.run(&format!("import {line} --from {}", self.server.root_url()))
    }

    /// What it says as JSON, without the time that it took.
    fn counts(&self, line: &str, exit: i32) -> Value {
        let said = self.import(&format!("{line} --json"));
        assert_eq!(said.code, Some(exit), "{said:#?}");
        let mut counts: Value = serde_json::from_str(&said.out).unwrap();
        assert!(counts.as_object_mut().unwrap().remove("seconds").is_some_and(|s| s.is_f64()));
        counts
    }

    fn keys(&mut self) -> Vec<String> {
        let mut keys: Vec<String> = self.say("KEYS *");
        keys.sort();
        keys
    }

    /// How many jobs of each payload there are.
    fn payloads(&self) -> BTreeMap<String, u32> {
        let mut payloads = BTreeMap::new();
        for job in self.jobs() {
            let payload = job.get("payload").unwrap_or_else(|| &job["payload_base64"]);
            *payloads.entry(payload.to_string()).or_default() += 1;
        }
        payloads
    }

    fn jobs(&self) -> Vec<Value> {
        self.cli.run("ls --all -o ndjson").lines()
    }

    /// All that is due, in the order in which it runs.
    fn take(&self) -> Vec<Value> {
        self.cli.run("take -q mail -n 5000 -o ndjson").lines()
    }
}

fn counts(taken: u32, already_here: u32, left: u32, refused: u32) -> Value {
    json!({ "taken": taken, "already_here": already_here, "remembered": 0, "left": left,
        "refused": refused, "vanished": 0 })
}

const ZSET_KEYS: &str = "zset-keys --key due --payload-key job:{member} --queue mail --kind reminder";
const ZSET_HASH: &str = "zset-hash --key due --hash bodies --queue mail --kind reminder";
const ZSET: &str = "zset --key due --queue mail --kind reminder";
const BACKUP: &str = "backup --list jobs --backup unacked --context messages --queue mail --kind reminder";

// ── each layout ──

#[test]
fn a_sorted_set_with_payloads_in_keys_comes_over() {
    let mut t = Old::start();
    for (id, score, body) in [("a", PAST, "{\"n\":1}"), ("b", FAR, "no-json"), ("c", PAST - 5, "[2]")] {
        t.say::<()>(&format!("SET job:{id} {body}"));
        t.say::<()>(&format!("ZADD due {score} {id}"));
    }
    t.say::<()>("SET other 1");
    assert_eq!(t.counts(ZSET_KEYS, 0), counts(3, 0, 0, 0));
    assert_eq!(t.keys(), ["other"], "what came over is gone there, and nothing else is");
    let jobs = t.jobs();
    let of = |id: &str| jobs.iter().find(|job| job["headers"]["imported_id"] == id).unwrap();
    assert_eq!(
        (&of("a")["payload"], &of("a")["kind"], &of("a")["queue"]),
        (&json!({"n": 1}), &json!("reminder"), &json!("mail"))
    );
    assert_eq!(
        (&of("b")["run_at_ms"], &of("b")["content_type"]),
        (&json!(FAR * 1_000), &json!("application/octet-stream"))
    );
    assert_eq!(of("b")["payload"], "no-json");
    let due: Vec<Value> = t.take().iter().map(|job| job["headers"]["imported_id"].clone()).collect();
    assert_eq!(due, ["c", "a"], "what was due first runs first");
    assert_eq!(t.counts(ZSET_KEYS, 0), counts(0, 0, 0, 0));
}

#[test]
fn a_sorted_set_with_payloads_in_a_hash_comes_over() {
    let mut t = Old::start();
    t.say::<()>("HSET bodies a 1 b 2 unrelated 3");
    t.say::<()>(&format!("ZADD due {PAST}000 a {FAR}123 b"));
    assert_eq!(t.counts(&format!("{ZSET_HASH} --unit ms"), 0), counts(2, 0, 0, 0));
    assert_eq!(t.keys(), ["bodies"]);
    assert_eq!(t.say::<Vec<String>>("HKEYS bodies"), ["unrelated"]);
    assert!(t.jobs().iter().any(|job| job["run_at_ms"] == FAR * 1_000 + 123));
}

#[test]
fn a_sorted_set_in_shards_comes_over_by_pattern_and_by_number() {
    let mut t = Old::start();
    for round in ["--key delay:*", "--key delay --shards 4"] {
        for shard in 0..4 {
            t.say::<()>(
                &format!("ZADD delay:{shard} {FAR} {{\"n\":\"{round:.7}{shard}\"}}").replace("--key ", "key"),
            );
        }
        assert_eq!(t.counts(&format!("zset {round} --kind k"), 0)["taken"], 4);
        assert_eq!(t.keys(), [""; 0]);
    }
}

#[test]
fn delayed_calls_and_lists_of_calls_come_over() {
    let mut t = Old::start();
    t.say::<()>(&format!("ZADD delayed: {FAR}.5 [\"u-1\",\"sms\",\"text\",{{\"to\":1}}]"));
    t.say::<()>("RPUSH queue:mail [\"send\",[1]] [\"u-2\",\"mail\",\"send\",[2]] [\"send\",[1]]");
    t.say::<()>("RPUSH queue:other [\"x\",null]");
    assert_eq!(t.counts("lists", 0), counts(5, 0, 0, 0));
    assert_eq!(t.keys(), [""; 0]);
    let jobs = t.jobs();
    let sms = jobs.iter().find(|job| job["queue"] == "sms").unwrap();
    assert_eq!(
        (&sms["kind"], &sms["payload"], &sms["run_at_ms"]),
        (&json!("text"), &json!({"to": 1}), &json!(FAR * 1_000 + 500))
    );
    let sent: Vec<Value> = t.take().iter().map(|job| job["payload"].clone()).collect();
    assert_eq!(sent, [json!([1]), json!([2]), json!([1])], "in their order, the equal ones too");
    assert_eq!(t.json_of("ls queue:other")[0]["kind"], "x");
}

#[test]
fn a_list_with_what_was_popped_and_a_hash_of_messages_comes_over() {
    for backup in
        ["HSET unacked m1 1600000000", "SADD unacked m1", "ZADD unacked 1600000000 m1", "RPUSH unacked m1"]
    {
        for next in ["left", "right"] {
            let mut t = Old::start();
            t.say::<()>("HSET messages m1 1 m2 2 m3 3 kept 4");
            t.say::<()>(if next == "left" { "RPUSH jobs m2 m3 m2" } else { "LPUSH jobs m2 m3 m2" });
            t.say::<()>(backup);
            assert_eq!(t.counts(&format!("{BACKUP} --next {next}"), 0), counts(4, 0, 0, 0), "{backup}");
            assert_eq!(t.keys(), ["messages"]);
            assert_eq!(t.say::<Vec<String>>("HKEYS messages"), ["kept"]);
            let ids: Vec<Value> = t.take().iter().map(|job| job["headers"]["imported_id"].clone()).collect();
            assert_eq!(ids, ["m1", "m2", "m3", "m2"], "{backup}, {next}");
        }
    }
}

#[test]
fn what_stands_around_the_star_is_no_part_of_the_queue() {
    let mut t = Old::start();
    t.say::<()>("RPUSH queue:mail:jobs [\"send\",1]");
    assert_eq!(t.counts("lists --lists queue:*:jobs", 0), counts(1, 0, 0, 0));
    assert_eq!(t.jobs()[0]["queue"], "mail");
}

#[test]
fn a_payload_that_two_sets_share_goes_with_the_last_of_them() {
    for (line, fill) in [
        ("zset-keys --key due:* --payload-key job:{member} --kind k", "MSET job:42 1 job:7 2"),
        ("zset-keys --key due --shards 3 --payload-key job:{member} --kind k", "MSET job:42 1 job:7 2"),
        ("zset-hash --key due:* --hash bodies --kind k", "HSET bodies 42 1 7 2"),
    ] {
        let mut t = Old::start();
        t.say::<()>(fill);
        t.say::<()>(&format!("ZADD due:0 {PAST} 42 {PAST} 7"));
        t.say::<()>(&format!("ZADD due:1 {FAR} 42"));
        assert_eq!(t.counts(line, 0), counts(3, 0, 0, 0), "{line}");
        assert_eq!(t.keys(), [""; 0], "{line}");
    }
}

#[test]
fn only_what_was_popped_may_be_left() {
    let mut t = Old::start();
    t.say::<()>("HSET messages m1 1");
    t.say::<()>("SADD unacked m1");
    assert_eq!(t.counts(BACKUP, 0)["taken"], 1);
    assert_eq!(t.keys(), [""; 0]);
}

#[test]
fn messages_may_stand_in_the_list_themselves() {
    let mut t = Old::start();
    t.say::<()>("RPUSH jobs {\"type\":\"a\"} {\"type\":\"b\"} {}");
    let line = "backup --list jobs --kind-field type --queue mail";
    assert_eq!(t.counts(line, 1), counts(2, 0, 0, 1));
    assert_eq!(t.keys(), ["punctual:import:refused:jobs"]);
    assert_eq!(t.say::<Vec<String>>("LRANGE punctual:import:refused:jobs 0 -1"), ["{}"]);
    assert_eq!(t.take().iter().map(|job| job["kind"].clone()).collect::<Vec<_>>(), ["a", "b"]);
}

// ── order, bounds ──

#[test]
fn many_elements_keep_their_order_over_batches_and_runs() {
    let mut t = Old::start();
    for round in 0..2 {
        let texts: Vec<String> = (0..2_500).map(|n| format!("[\"k\",{}]", round * 2_500 + n)).collect();
        t.redis.rpush::<_, _, ()>("queue:mail", texts).unwrap();
        assert_eq!(t.counts("lists", 0)["taken"], 2_500);
    }
    let payloads: Vec<u64> = t.take().iter().map(|job| job["payload"].as_u64().unwrap()).collect();
    assert_eq!(payloads, (0..5_000).collect::<Vec<_>>());
}

#[test]
fn large_payloads_go_in_batches_and_too_large_ones_are_refused() {
    let mut t = Old::start();
    let large = "x".repeat(600 * 1_024);
    for n in 0..4 {
        t.redis.zadd::<_, _, _, ()>("due", format!("{n}{large}"), FAR).unwrap();
    }
    t.redis.zadd::<_, _, _, ()>("due", "y".repeat(1_024 * 1_024 + 1), PAST).unwrap();
    let said = t.import(ZSET);
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(said.err.contains("payload of 1048577 bytes is over the limit of 1048576"), "{}", said.err);
    assert!(said.out.starts_with("4 imported · 0 imported before · 0 left · 1 refused · "), "{}", said.out);
    assert_eq!(t.say::<u32>("ZCARD due"), 1);
}

#[test]
fn what_was_popped_is_claimed_within_bytes() {
    let mut t = Old::start();
    let claim = redis::Script::new(include_str!("../../src/commands/import/lua/claim.lua"));
    t.say::<()>("HSET state owner me");
    for fill in ["RPUSH", "SADD"] {
        t.redis.del::<_, ()>(&["unacked", "aside"]).unwrap();
        for n in 0..20 {
            cmd(fill).arg("unacked").arg(format!("{n}{}", "x".repeat(100))).exec(&mut t.redis).unwrap();
        }
        let mut call = claim.key("state");
        call.key("aside").key("jobs").key("unacked").arg("me").arg("left").arg(1_000).arg(1_000);
        assert_eq!(call.invoke::<u32>(&mut t.redis).unwrap(), 0);
        // Slices of 1, 2, 4 and 8: the last one begins below the bytes.
        assert_eq!(t.say::<u32>("LLEN aside"), 15, "{fill}");
    }
    assert_eq!(t.say::<u32>("SCARD unacked"), 5);
}

// ── what stays ──

#[test]
fn an_entry_without_its_payload_stays_and_is_told() {
    let mut t = Old::start();
    t.say::<()>(&format!("ZADD due {PAST} gone-1 {PAST} gone-2 {FAR} here"));
    t.say::<()>("SET job:here 1");
    let said = t.import(ZSET_KEYS);
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(
        said.err.contains(
            "due: 2 entries that could not be imported stay where they are\n  gone-1: the payload is missing"
        ),
        "{}",
        said.err
    );
    assert_eq!(t.keys(), ["due"]);
    t.say::<()>("MSET job:gone-1 1 job:gone-2 2");
    assert_eq!(t.counts(ZSET_KEYS, 0), counts(2, 0, 0, 0));
    t.say::<()>("HSET messages m2 2");
    t.say::<()>("RPUSH jobs m1 m2");
    assert_eq!(t.counts(BACKUP, 1), counts(1, 0, 0, 1));
    assert_eq!(t.say::<Vec<String>>("LRANGE punctual:import:refused:jobs 0 -1"), ["m1"]);
}

#[test]
fn malformed_entries_stay_or_stand_aside_and_the_others_come_over() {
    let mut t = Old::start();
    t.say::<()>(&format!(
        "ZADD delayed: {PAST} {{broken {PAST} [1,2] {PAST} [\"u\",\"mail\",\"k\",1] inf [\"u\",\"q\",\"k\",1]"
    ));
    t.say::<()>("RPUSH queue:mail [\"k\",1] nonsense [\"k\",2] [3,4] [\"k\",3]");
    let said = t.import("lists");
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(said.err.contains("nonsense: the entry is not a JSON list"), "{}", said.err);
    assert!(
        said.err.contains(
            "queue:mail: 2 entries that could not be imported are now in punctual:import:refused:queue:mail"
        ),
        "{}",
        said.err
    );
    assert!(said.out.starts_with("4 imported · 0 imported before · 0 left · 5 refused · "), "{}", said.out);
    assert_eq!(t.say::<Vec<String>>("LRANGE punctual:import:refused:queue:mail 0 -1"), ["nonsense", "[3,4]"]);
    assert_eq!(t.say::<u32>("ZCARD delayed:"), 3);
    assert_eq!(t.keys(), ["delayed:", "punctual:import:refused:queue:mail"]);
}

// ── repetition ──

/// A user of the server who may look and write notes, and not take anything off: an import as this one stops exactly between the
/// store's answer and the removal.
fn lame(t: &mut Old) -> String {
    t.say::<()>("ACL SETUSER lame on >secret ~* &* +@all -zrem -ltrim");
    format!("{}&user=lame&pass=secret", t.server.root_url())
}

impl Old {
    fn json_of(&self, line: &str) -> Vec<Value> {
        self.cli.run(&format!("{line} -o ndjson")).lines()
    }

    fn stop_before_removal(&mut self, line: &str) {
        let url = lame(self);
        let said = self.cli.run(&format!("import {line} --from {url}"));
        said.fails(2, "unsupported", "the server of --from denied access");
    }
}

#[test]
fn what_was_enqueued_and_not_removed_is_here_already_even_if_it_ran() {
    for (line, fill) in [
        (ZSET_KEYS, vec!["MSET job:a 1 job:b 2", "ZADD due 1600000000 a 1600000001 b"]),
        (ZSET_HASH, vec!["HSET bodies a 1 b 2", "ZADD due 1600000000 a 1600000001 b"]),
        (ZSET, vec!["ZADD due 1600000000 1 1600000001 2"]),
        ("lists", vec!["RPUSH queue:mail [\"k\",1] [\"k\",1]"]),
        (BACKUP, vec!["HSET messages m 1", "RPUSH jobs m m"]),
    ] {
        let mut t = Old::start();
        for line in fill {
            t.say::<()>(line);
        }
        t.stop_before_removal(line);
        assert_eq!(t.jobs().len(), 2, "{line}");
        assert_ne!(t.keys(), [""; 0], "{line}: nothing was taken off");
        assert_eq!(t.take().len(), 2);
        assert_eq!(t.counts(line, 0), counts(0, 2, 0, 0), "{line}");
        assert_eq!((t.jobs().len(), t.keys()), (2, vec![]), "{line}");
    }
}

#[test]
fn a_list_whose_name_ends_as_keys_of_an_import_do_is_found_again() {
    for name in ["open", "ids", "aside", "refused", "state"] {
        let mut t = Old::start();
        t.say::<()>(&format!("RPUSH queue:{name} [\"k\",1]"));
        t.stop_before_removal("lists");
        assert_eq!(t.say::<u32>(&format!("LLEN punctual:import:aside:queue:{name}")), 1);
        assert_eq!(t.counts("lists", 0), counts(0, 1, 0, 0), "{name}");
        assert_eq!((t.jobs().len(), t.keys()), (1, vec![]), "{name}");
    }
}

/// What a user may not do, and what is of another type, is refused by the server in the midst of a script, which rolls nothing back.
#[test]
fn a_refusal_by_the_server_of_any_command_loses_nothing() {
    let bodies = ["HSET messages m 1 n 2", "RPUSH jobs m"];
    let mut t = Old::start();
    for (line, rights, fill) in [
        (ZSET_KEYS, "zrem unlink hincrby", ["MSET job:a 1 job:b 2", "ZADD due 1600000000 a", "ZADD due 5 b"]),
        (ZSET_HASH, "zrem hdel hincrby unlink", ["HSET bodies a 1 b 2", "ZADD due 16 a", "ZADD due 5 b"]),
        (
            "lists",
            "rename rpush ltrim hincrby del",
            ["RPUSH queue:mail [\"k\",1] x [\"k\",2]", "PING", "PING"],
        ),
        (BACKUP, "srem rpush hdel", [bodies[0], bodies[1], "SADD unacked n"]),
        (BACKUP, "zrem rpush", [bodies[0], bodies[1], "ZADD unacked 5 n"]),
        (BACKUP, "hdel rpush", [bodies[0], bodies[1], "HSET unacked n 5"]),
        (BACKUP, "ltrim rpush", [bodies[0], bodies[1], "RPUSH unacked n"]),
    ] {
        for right in rights.split(' ') {
            t.say::<()>("FLUSHALL");
            t.cli = Cli::new();
            for line in fill {
                t.say::<()>(line);
            }
            t.say::<()>(&format!("ACL SETUSER lame reset on >secret ~* &* +@all -{right}"));
            let url = format!("{}&user=lame&pass=secret", t.server.root_url());
            for _ in 0..2 {
                let said = t.cli.run(&format!("import {line} --from {url}"));
                said.fails(2, "unsupported", "the server of --from denied access");
            }
            t.import(line);
            let what = format!("{line} without {right}: {:?}", t.payloads());
            assert_eq!((t.jobs().len(), t.payloads().len()), (2, 2), "{what}");
            let (refused, left) =
                (t.say::<Vec<String>>("LRANGE punctual:import:refused:queue:mail 0 -1"), t.keys());
            assert_eq!(refused, vec!["x"; usize::from(line == "lists")], "{what}");
            assert_eq!(left.len(), refused.len(), "{what}: {left:?}");
        }
    }
    t.say::<()>("FLUSHALL");
    t.cli = Cli::new();
    t.say::<()>("SET punctual:import:refused:queue:mail other");
    t.say::<()>("RPUSH queue:mail [\"k\",1] broken");
    t.import("lists").fails(2, "invalid", "a key of --from does not have the type");
    assert_eq!(t.say::<u32>("LLEN punctual:import:aside:queue:mail"), 2);
    t.say::<()>("DEL punctual:import:refused:queue:mail");
    assert_eq!(t.counts("lists", 1), counts(0, 1, 0, 1));
}

#[test]
fn entries_whose_jobs_were_deleted_meanwhile_are_told() {
    let mut t = Old::start();
    t.say::<()>("ZADD due 4102444800 1 4102444801 2");
    t.stop_before_removal(ZSET);
    t.cli.ok(&format!("delete {}", t.jobs()[0]["id"].as_str().unwrap()));
    let said = t.import(&format!("{ZSET} --json"));
    let told: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&told["already_here"], &told["remembered"]), (&json!(1), &json!(1)));
    assert!(
        said.err.contains("warning: the jobs of 1 entry ended or were deleted within the last day"),
        "{}",
        said.err
    );
}

#[test]
fn an_entry_whose_time_or_payload_changed_meanwhile_comes_over_as_it_is_now() {
    for (line, change) in [(ZSET_KEYS, "ZADD due 4102444900 a"), (ZSET_KEYS, "SET job:a 2")] {
        let mut t = Old::start();
        t.say::<()>("SET job:a 1");
        t.say::<()>("ZADD due 4102444800 a");
        t.stop_before_removal(line);
        // As if it happened between the look and the removal.
        let state: BTreeMap<String, String> = t.say("HGETALL punctual:import:state:due");
        t.say::<()>(change);
        let remove = include_str!("../../src/commands/import/lua/remove.lua");
        let letters: String = redis::Script::new(remove)
            .key("punctual:import:state:due")
            .key("due")
            .key("punctual:import:open:due")
            .arg(&state["owner"])
            .arg(&state["taken"])
            .arg("key")
            .arg("job:")
            .arg("")
            .arg("a")
            .arg("4102444800.0")
            .arg("356a192b7913b04c54574d18c28d46e6395428ab")
            .invoke(&mut t.redis)
            .unwrap();
        assert_eq!(letters, "c", "{change}");
        assert_eq!(t.say::<u32>("ZCARD due"), 1, "{change}: it stays");
        assert_eq!(t.counts(line, 0)["taken"], 1, "{change}");
        assert_eq!(t.keys(), [""; 0]);
    }
}

#[test]
fn entries_that_push_in_before_a_batch_that_was_stopped_double_nothing() {
    let mut t = Old::start();
    let entries = |from: u64| (from..from + 900).map(|n| (n, n.to_string())).collect::<Vec<_>>();
    t.redis.zadd_multiple::<_, _, _, ()>("due", &entries(2_000)).unwrap();
    t.stop_before_removal(ZSET);
    t.redis.zadd_multiple::<_, _, _, ()>("due", &entries(0)).unwrap();
    assert_eq!(t.counts(ZSET, 0), counts(900, 900, 0, 0));
    assert_eq!((t.jobs().len(), t.keys()), (1_800, vec![]));
}

#[test]
fn the_same_entry_put_back_later_is_another_one() {
    let mut t = Old::start();
    for _ in 0..3 {
        t.say::<()>("ZADD due 0 ping");
        assert_eq!(t.counts(ZSET, 0), counts(1, 0, 0, 0));
    }
    assert_eq!(t.payloads().len(), 1);
    assert_eq!(t.jobs().len(), 3);
}

#[test]
fn killed_at_any_moment_and_run_again_it_loses_and_doubles_nothing() {
    let mut t = Old::start();
    let texts: Vec<String> = (0..20_000).map(|n| format!("[\"k\",{}]", n / 2)).collect();
    t.redis.rpush::<_, _, ()>("queue:mail", texts).unwrap();
    for kill in 1..=3 {
        let url = t.server.root_url();
        let mut child = t.cli.command(["import", "lists", "--from", &url]).spawn().unwrap();
        let waiting = || {
            let said = t.cli.run("stats --json");
            let stats: Value = serde_json::from_str(&said.out).ok()?;
            Some(()).filter(|()| stats["waiting"].as_u64().is_some_and(|n| kill * 3_000 <= n))
        };
        wait(waiting, || "it does not begin".into());
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "it was over before it was killed");
    }
    let rest = t.counts("lists", 0);
    assert_ne!(rest["taken"], 0, "{rest}");
    assert_eq!(t.keys(), [""; 0]);
    let payloads = t.payloads();
    assert_eq!((payloads.len(), payloads.values().all(|n| *n == 2)), (10_000, true));
}

#[test]
fn an_import_that_was_stopped_goes_on_only_as_it_began() {
    let mut t = Old::start();
    t.say::<()>("ZADD due 1600000000 1");
    t.stop_before_removal(ZSET);
    let other = "zset --key due --queue other --kind reminder";
    let said = t.import(other);
    said.fails(4, "conflict", "an earlier import of \"due\" was stopped, and had other options");
    assert!(said.err.contains("\"punctual:import:state:due\""), "{}", said.err);
    assert_eq!(t.counts(ZSET, 0), counts(0, 1, 0, 0));
}

#[test]
fn one_that_was_stopped_knows_its_layout_its_store_and_where_payloads_are() {
    let mut t = Old::start();
    t.say::<()>("MSET job:a 1 work:a 1");
    t.say::<()>("ZADD due 1600000000 a");
    t.stop_before_removal(ZSET_KEYS);
    for other in [ZSET, &ZSET_KEYS.replace("job:", "work:"), &format!("{ZSET_KEYS} --store sqlite:other.db")]
    {
        t.import(other).fails(4, "conflict", "an earlier import of \"due\" was stopped");
    }
    let same = format!("{ZSET_KEYS} --store sqlite:{}", t.cli.path("punctual.db").display());
    assert_eq!(t.counts(&same, 0), counts(0, 1, 0, 0));
}

#[test]
fn messages_that_can_not_go_yet_go_with_the_next_import() {
    let mut t = Old::start();
    t.say::<()>("HSET messages m1 1 m2 2");
    t.say::<()>("RPUSH punctual:import:ids:jobs m1");
    t.say::<()>("HSET punctual:import:state:jobs owner me");
    t.say::<()>("RPUSH jobs m2");
    let finish = redis::Script::new(include_str!("../../src/commands/import/lua/finish.lua"));
    let mut call = finish.key("punctual:import:state:jobs");
    call.key("punctual:import:aside:jobs")
        .key("jobs")
        .key("punctual:import:ids:jobs")
        .key("messages")
        .arg("me")
        .arg(9);
    assert_eq!(call.invoke::<String>(&mut t.redis).unwrap(), "kept", "it ends while producers write");
    assert_eq!(t.keys(), ["jobs", "messages", "punctual:import:ids:jobs"]);
    t.say::<()>("DEL jobs");
    assert_eq!(t.counts(BACKUP, 0), counts(0, 0, 0, 0));
    assert_eq!(t.keys(), ["messages"]);
    assert_eq!(t.say::<Vec<String>>("HKEYS messages"), ["m2"]);
}

#[test]
fn it_ends_while_producers_never_stop() {
    let mut t = Old::start();
    let stop = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = (0..2)
        .map(|me| {
            let (url, stop) = (t.server.url(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut redis = redis::Client::open(url).unwrap().get_connection().unwrap();
                let mut n = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let id = format!("m{me}-{n}");
                    redis.hset::<_, _, _, ()>("messages", &id, &id).unwrap();
                    redis.rpush::<_, _, ()>("jobs", &id).unwrap();
                    n += 1;
                }
                n
            })
        })
        .collect();
    t.server.until_says(&["EXISTS", "jobs"], |there| there == "1");
    let said = t.import(BACKUP);
    stop.store(true, Ordering::Relaxed);
    assert_eq!(said.code, Some(0), "{said:#?}");
    let pushed: u32 = producers.into_iter().map(|producer| producer.join().unwrap()).sum();
    t.import(BACKUP).ok();
    assert_eq!((t.payloads().len() as u32, t.jobs().len() as u32, t.keys()), (pushed, pushed, vec![]));
}

#[test]
fn of_two_imports_the_one_that_began_last_goes_on() {
    let mut t = Old::start();
    t.say::<()>("RPUSH queue:mail [\"k\",1]");
    t.stop_before_removal("lists");
    let state: BTreeMap<String, String> = t.say("HGETALL punctual:import:state:queue:mail");
    t.say::<()>("HSET punctual:import:state:queue:mail owner somebody");
    let trim = redis::Script::new(include_str!("../../src/commands/import/lua/trim.lua"));
    let refused = trim
        .key("punctual:import:state:queue:mail")
        .key("punctual:import:aside:queue:mail")
        .key("r")
        .arg(&state["owner"])
        .arg(&state["taken"])
        .arg("left")
        .arg(1)
        .invoke::<()>(&mut t.redis)
        .unwrap_err();
    assert_eq!(refused.code(), Some("TAKENOVER"));
    assert_eq!(t.say::<u32>("LLEN punctual:import:aside:queue:mail"), 1);
}

// ── looking only, and what is wrong ──

#[test]
fn a_dry_run_shows_three_and_writes_nothing_anywhere() {
    let mut t = Old::start();
    t.say::<()>(&format!("ZADD delayed: {FAR} [\"u-1\",\"sms\",\"text\",{{\"to\":1}}] {FAR} broken"));
    t.say::<()>("RPUSH queue:mail [\"k\",1] [\"k\",2] [\"k\",3] [\"k\",4]");
    t.say::<()>("CONFIG RESETSTAT");
    let said = t.import("lists --dry-run");
    assert_eq!(said.code, Some(0), "{said:#?}");
    assert!(said.out.contains("queue:mail  4 entries\n  k  queue mail  due at once  1\n"), "{}", said.out);
    assert!(said.out.contains("delayed:  2 entries\n  text  queue sms  due 2100-01-01"), "{}", said.out);
    assert!(said.out.contains("  refused: broken: the entry is not a JSON list"), "{}", said.out);
    assert!(!said.out.contains("  k  queue mail  due at once  4"), "{}", said.out);
    let shown: Value = serde_json::from_str(&t.import("lists --dry-run --json").ok()).unwrap();
    assert_eq!((&shown["entries"], &shown["sources"][1]["first"][2]["payload"]), (&json!(6), &json!(3)));
    assert_eq!(t.keys(), ["delayed:", "queue:mail"]);
    assert_eq!((t.say::<u32>("ZCARD delayed:"), t.say::<u32>("LLEN queue:mail")), (2, 4));
    assert!(!t.cli.path("punctual.db").exists(), "no store was made");
    for line in [ZSET_KEYS, ZSET_HASH, ZSET, BACKUP] {
        assert_eq!(t.import(&format!("{line} --dry-run")).ok(), "");
    }
}

#[test]
fn keys_of_another_type_are_refused_before_anything_is_taken() {
    let mut t = Old::start();
    t.say::<()>("RPUSH due 1");
    t.say::<()>("RPUSH queue:a [\"k\",1]");
    t.say::<()>("HSET queue:stats a 1");
    t.say::<()>("ZADD jobs 1 a");
    for (line, message) in [
        (ZSET, "key \"due\" is a list, not a sorted set (WRONGTYPE)"),
        (ZSET_KEYS, "key \"due\" is a list, not a sorted set (WRONGTYPE)"),
        ("lists", "key \"queue:stats\" is a hash, not a list (WRONGTYPE)"),
        (BACKUP, "key \"jobs\" is a sorted set, not a list (WRONGTYPE)"),
    ] {
        t.import(line).fails(2, "invalid", message);
        t.import(&format!("{line} --dry-run")).fails(2, "invalid", message);
    }
    t.say::<()>("DEL due jobs");
    t.say::<()>(&format!("ZADD due {FAR} a"));
    t.say::<()>("SET bodies x");
    t.import(ZSET_HASH).fails(2, "invalid", "a key of --from does not have the type");
    t.say::<()>("RPUSH job:a x");
    assert_eq!(t.counts(ZSET_KEYS, 1), counts(0, 0, 0, 1));
    assert_eq!(t.say::<u32>("LLEN queue:a") + t.say::<u32>("ZCARD due"), 2);
}

#[test]
fn scores_of_the_other_unit_are_refused_before_anything_is_taken() {
    let mut t = Old::start();
    t.say::<()>(&format!("ZADD due:1 {FAR}000 a"));
    // One that is marked by its score hides nothing.
    t.say::<()>(&format!("ZADD due:2 {FAR} b {FAR} c {FAR}000 d"));
    let line = "zset --key due:* --unit ms --kind k --queue mail";
    t.import(line).fails(2, "invalid", "the scores of \"due:2\" do not look like milliseconds");
    assert_eq!(t.keys(), ["due:1", "due:2"]);
    t.say::<()>(&format!("ZADD due:2 {FAR}001 b"));
    t.stop_before_removal(line);
    // What is left of one that was stopped may look as it does.
    t.say::<()>("ZADD due:1 5 x 6 y");
    assert_eq!(t.counts(line, 0)["refused"], 0);
    assert_eq!((t.jobs().len(), t.keys()), (6, vec![]));
}

#[test]
fn a_store_that_may_forget_its_last_jobs_is_told() {
    let mut t = Old::start();
    let other = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    for (more, is_told) in [("", true), ("&durability=full", false)] {
        t.say::<()>(&format!("ZADD due {FAR} a"));
        let said = t.import(&format!("{ZSET} --store {}{more}", other.url()));
        assert_eq!(said.code, Some(0), "{said:#?}");
        assert_eq!(
            said.err.contains(" is fast: a power cut can lose the last jobs"),
            is_told,
            "{}",
            said.err
        );
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let mut t = Old::start();
    t.say::<()>(&format!("ZADD due {FAR}000 a"));
    let said = t.import(ZSET);
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(said.err.contains("in seconds, is after the year 9999"), "{}", said.err);
    t.say::<()>("DEL due");
    t.say::<()>(&format!("ZADD due {FAR} a"));
    t.import(&format!("{ZSET} --unit ms")).fails(
        2,
        "invalid",
        "the scores of \"due\" do not look like milliseconds",
    );
    t.import("zset-keys --key due --kind k --payload-key job").fails(
        2,
        "invalid",
        "--payload-key \"job\" must contain {member} once",
    );
    t.import("zset --key d:* --shards 4 --kind k").fails(
        2,
        "invalid",
        "--shards does not work with a pattern in --key",
    );
    // Without a kind nothing becomes a job: nothing is touched, and the dry run says so.
    for dry in ["", " --dry-run"] {
        t.say::<()>("RPUSH mails a b");
        t.import(&format!("backup --list mails -q mail{dry}")).is_usage("--kind");
        assert_eq!(t.say::<u32>("LLEN mails"), 2);
        t.say::<()>("DEL mails");
    }
    for (line, word) in [
        ("zset --key due", "--kind"),
        ("zset --key due -q mail", "--kind"),
        ("backup --list jobs --queue-field to", "--kind"),
        ("zset --kind k", "--key"),
        ("zset --key due --kind k --unit us", "us"),
        ("zset --key due --kind k --dry-run --follow", "cannot be used with"),
        ("lists --kind k", "--kind"),
        ("backup --kind k", "--list"),
    ] {
        t.import(line).is_usage(word);
    }
    let at = |url: &str| t.cli.run(&format!("import {ZSET} --from {url}"));
    at("http://:secret@x").fails(2, "invalid", "import cannot use the address in --from");
    let said = at("redis://:secret@host:port");
    said.fails(2, "invalid", "could not read the address of --from");
    assert!(!said.err.contains("secret"), "{}", said.err);
    at("redis://127.0.0.1:1").fails(5, "store_unavailable", "could not reach the server of --from");
    assert_eq!(t.say::<u32>("ZCARD due"), 1);
}

#[test]
fn consumers_that_still_wait_are_told() {
    let mut t = Old::start();
    let mut other = redis::Client::open(t.server.url()).unwrap().get_connection().unwrap();
    let consumer = std::thread::spawn(move || {
        cmd("BLPOP").arg("nothing").arg(0).query::<Option<Vec<String>>>(&mut other)
    });
    t.server.until_says(&["CLIENT", "LIST"], |list| list.contains("cmd=blpop"));
    let said = t.import(ZSET);
    assert_eq!(said.code, Some(0));
    assert!(
        said.err.contains("warning: 1 other connection in blpop: stop the old consumers"),
        "{}",
        said.err
    );
    assert!(said.err.contains("nothing to import"), "{}", said.err);
    t.say::<()>("RPUSH nothing 1");
    assert!(consumer.join().unwrap().unwrap().is_some());
}

#[cfg(unix)]
#[test]
fn it_follows_until_it_is_interrupted() {
    let mut t = Old::start();
    let url = t.server.root_url();
    let args =
        [&["import"], &ZSET.split(' ').collect::<Vec<_>>()[..], &["--follow", "--json", "--from", &url]]
            .concat();
    let child = t.cli.command(args).spawn().unwrap();
    for n in 0..2 {
        t.say::<()>(&format!("ZADD due {FAR} {n}"));
        t.server.until_says(&["DBSIZE"], |keys| keys == "0");
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let said = crate::fixture::said(child);
    assert_eq!((said.code, &said.lines()[0]["taken"]), (Some(130), &json!(2)), "{said:#?}");
}

#[test]
fn the_address_of_the_server_is_read_from_a_file_or_a_variable() {
    let mut t = Old::start();
    t.say::<()>(&format!("ZADD due {FAR} a"));
    let url = t.server.root_url();
    std::fs::write(t.cli.path("from"), format!("{url}\n")).unwrap();
    let line = ["import", "zset", "--key", "due", "--kind", "k", "--dry-run"];
    let file = t.cli.args(&[&line[..], &["--from-file", "from"]].concat());
    assert!(file.ok().contains("1 entry"));
    let variable = t.cli.command(line).env("PUNCTUAL_IMPORT_FROM", url).spawn().unwrap();
    assert!(crate::fixture::said(variable).ok().contains("1 entry"));
    t.cli.args(&line).is_usage("--from");
}
