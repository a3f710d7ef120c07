//! What the commands do on a server of Redis, and how they tell that something is wrong with it.

#[path = "../../../punctual/tests/support/redis.rs"]
pub(crate) mod server;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    process::Command,
};

use self::server::Server;
use crate::fixture::{A, Cli, said};

/// A connection beside the commands.
fn connect(server: &Server) -> redis::Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// How many keys there are.
fn keys(server: &Server) -> u64 {
    redis::cmd("DBSIZE").query(&mut connect(server)).unwrap()
}

#[test]
fn a_bench_measures_the_server_too_and_leaves_nothing_behind() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let sizes = "--jobs 2000 --waiting 500 --seconds 1";
    let figures = t.json(&format!("bench {sizes} --store {}", server.url()));
    assert_eq!(keys(&server), 0);
    assert_eq!((&figures["fsync_ms"], &figures["waiting_jobs"]), (&serde_json::Value::Null, &500.into()));
    for name in [
        "lives_one_by_one_per_s",
        "enqueue_bulk_per_s",
        "enqueue_single_per_s",
        "enqueue_single64_per_s",
        "lives_per_s",
        "lives_random_due_per_s",
        "lives_default_retention_per_s",
        "drain_per_s",
        "drain_beside_waiting_per_s",
        "bytes_per_waiting_job",
        "server_us_per_life",
        "server_cpu_us_per_life",
        "server_us_per_life_default_retention",
        "server_us_per_life_single",
        "server_cpu_us_per_life_single",
        "server_us_per_life_single_default_retention",
        "server_cpu_us_per_life_single_default_retention",
    ] {
        assert!(figures[name].as_f64().is_some_and(|n| 0.0 < n), "{name}: {figures}");
    }
    for name in ["insert_per_s", "lives_per_s", "server_us_per_life", "server_us_per_life_single"] {
        assert!(figures["reference"][name].as_f64().is_some_and(|n| 0.0 < n), "{name}: {figures}");
    }
    // Where callgrind is, it counts.
    if cfg!(target_os = "linux") && std::env::var_os("CI").is_some() {
        let [ours, bare] = ["server_instructions_per_life", "server_instructions_per_life_bare"]
            .map(|name| figures[name].as_u64().unwrap());
        assert!(bare < ours && ours < 6 * bare, "{figures}");
    }
    // A notification sent while the worker settled down may be one of them.
    assert!(figures["idle_ops_per_s"].as_f64().is_some_and(|n| n < 5.0), "{figures}");
    // Two calls a life where each is of one job; far fewer where they are many.
    let calls = |name: &str| figures[name].as_f64().unwrap();
    assert!((2.0..2.5).contains(&calls("server_calls_per_life_single")), "{figures}");
    assert!(calls("server_calls_per_life") < 3.0 / 50.0, "{figures}");
}

#[test]
fn a_bench_of_the_tools_measures_scripts_beside_them_and_leaves_nothing_behind() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let figures = t.json(&format!("bench tools --calls 2000 --keys 2000 --store {}", server.url()));
    assert_eq!(keys(&server), 0);
    let names = |list: &str| {
        let all = figures[list].as_array().unwrap().iter();
        all.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("limiters"), ["punctual", "punctual, evenly", "script"]);
    assert_eq!(names("boards"), ["punctual", "punctual, all time", "script"]);
    for one in figures["limiters"].as_array().unwrap() {
        // Of twenty full keys nothing may be seen beside what else the server keeps.
        assert!(one["bytes_per_full_key"].is_f64(), "{one}");
        for name in ["per_s", "per_s_64", "server_us", "used_percent", "bytes_per_key"] {
            assert!(one[name].as_f64().is_some_and(|n| 0.0 < n), "{name}: {one}");
        }
    }
    for ours in &figures["limiters"].as_array().unwrap()[..2] {
        assert!(ours["most_in_a_period"].as_u64() <= ours["may_pass"].as_u64(), "{ours}");
    }
    for one in figures["boards"].as_array().unwrap() {
        for name in ["bytes_per_member", "bytes_per_member_listed", "top_ms"] {
            assert!(one[name].as_f64().is_some_and(|n| 0.0 < n), "{name}: {one}");
        }
        for name in ["per_s", "per_s_64", "server_us"] {
            let (add, top) = (&one["adds"][name], &one["tops"][name]);
            assert!([add, top].iter().all(|n| n.as_f64().is_some_and(|n| 0.0 < n)), "{name}: {one}");
        }
        assert_eq!(one["is_sum_right"], true, "{one}");
    }
}

#[test]
fn a_bench_of_the_tools_needs_no_server() {
    let t = Cli::new();
    let figures = t.json("bench tools --calls 500 --keys 500 --store memory:");
    assert_eq!(figures["limiters"].as_array().map(Vec::len), Some(2), "{figures}");
    assert_eq!(figures["boards"][1]["is_sum_right"], true, "{figures}");
    assert_eq!(figures["boards"][0]["bytes_per_member"], serde_json::Value::Null, "{figures}");
}

#[test]
fn what_is_wrong_with_an_address_is_said_without_its_password() {
    let t = Cli::new();
    for (url, message) in [
        ("redis://", "could not read the address"),
        ("redis://:secret@cache:port", "could not read the address"),
        ("redis://:secret@cache/jobs", "could not read the address"),
        ("redis://:secret@cache/-1", "could not read the address"),
        ("redis://:secret@cache/0/1", "could not read the address"),
        ("redis://:secret@cache/#x", "the address of a redis: store cannot contain #"),
        ("redis://:secret@cache?timeout=1", "\"timeout\" is not an option of a redis: store"),
        ("redis://:secret@cache?durability=most", "\"most\" is not a durability of a redis: store"),
        ("redis://:secret@cache?eviction=maybe", "\"maybe\" is nothing that eviction= may be"),
        ("redis://:secret@cache?prefix={a}", "\"{a}\" can't be the prefix of keys"),
        ("redis://:secret@cache?prefix=*", "\"*\" can't be the prefix of keys"),
        ("redis://:secret@cache?prefix=a%0d%0aFLUSHALL", "\"a\\r\\nFLUSHALL\" can't be the prefix"),
        ("redis://:secret@cache?prefix=%1b%5b2J", "\"\\u{1b}[2J\" can't be the prefix of keys"),
        ("redis+unix:relative.sock?pass=secret", "could not read the address"),
    ] {
        for command in ["ls", "push k", "doctor", "bench"] {
            let said = t.args(&[&command.split(' ').collect::<Vec<_>>()[..], &["--store", url]].concat());
            said.fails(2, "invalid", message);
            assert!(!said.err.contains("secret") && !said.err.contains('\u{1b}'), "{said:#?}");
            assert!(said.err.contains("\n  try   "), "{said:#?}");
        }
    }
    let long = format!("ls --store redis://cache?prefix={}", "x".repeat(65));
    t.run(&long).fails(2, "invalid", "\"xxx");
}

#[test]
fn a_server_that_is_not_there_is_unavailable() {
    let t = Cli::new();
    // Nobody listens on port 1; the name ends in what no name ends in.
    for url in [
        "redis://:secret@127.0.0.1:1",
        "redis://:secret@nowhere.invalid",
        "redis+unix:///no/such.sock?pass=secret",
    ] {
        for command in ["ls", "push k", "doctor", "bench"] {
            let said = t.run(&format!("{command} --store {url}"));
            said.fails(5, "store_unavailable", "could not connect to the server");
            assert!(!said.err.contains("secret") && said.err.contains("\n  try   "), "{said:#?}");
        }
    }
}

/// An address where each connection gets these bytes and is then closed.
fn answering(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            // The question is read first: what is closed with bytes unread is reset.
            let _ = connection.read(&mut [0; 4_096]);
            let _ = connection.write_all(bytes);
        }
    });
    url
}

#[test]
fn only_a_server_that_closes_or_answers_oddly_may_want_tls() {
    let t = Cli::new();
    // A socket that nobody listens on any more.
    drop(std::os::unix::net::UnixListener::bind(t.path("left.sock")).unwrap());
    let left = format!("redis+unix://{}", t.path("left.sock").display());
    for url in ["redis://127.0.0.1:1", "redis://localhost:1", "redis+unix:///no/such.sock", &left] {
        let said = t.run(&format!("ls --store {url}"));
        said.fails(5, "store_unavailable", "could not connect to the server: nothing listens at its address");
        assert!(said.err.contains("\n  try   start the server, or correct the "), "{url}: {said:#?}");
        assert!(!said.err.contains("rediss"), "{url}: {said:#?}");
    }
    // Closed at once, the alert of a port that takes only TLS, and a web server.
    for bytes in [&b""[..], b"\x15\x03\x01\x00\x02\x02\x46", b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let said = t.run(&format!("ls --store {}", answering(bytes)));
        said.fails(5, "store_unavailable", "could not connect to the server");
        assert!(said.err.contains("write rediss://"), "{bytes:?}: {said:#?}");
    }
}

#[test]
fn who_is_not_let_in_is_told_so() {
    let (t, server) = (Cli::new(), Server::start(&["--requirepass", "right"]));
    for wrong in ["", "&pass=wrong-secret", "&user=nobody&pass=wrong-secret"] {
        for command in ["ls", "push k", "doctor", "bench"] {
            let said = t.run(&format!("{command} --store {}{wrong}", server.url()));
            said.fails(2, "unsupported", "");
            assert!(said.err.contains("check the user and the password"), "{said:#?}");
            assert!(!said.err.contains("secret"), "{said:#?}");
        }
    }
    t.ok(&format!("push k --store {}&pass=right", server.url()));
}

/// A password in base64 has one. It is the same in each part of an address.
#[test]
fn a_plus_in_a_password_is_a_plus() {
    let (t, server) = (Cli::new(), Server::start(&["--requirepass", "aB+cd=="]));
    t.ok(&format!("push k --store {}&pass=aB+cd==", server.url()));
}

#[test]
fn a_server_with_fewer_databases_is_not_away() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    for command in ["ls", "push k", "doctor"] {
        let said = t.run(&format!("{command} --store {}&db=99", server.url()));
        said.fails(2, "unsupported", "the server refused to switch to the database of the address");
        assert!(said.err.contains("write a smaller number after the host"), "{said:#?}");
    }
}

/// Some providers take INFO away. Then it is not seen what it says, as for a user who may not run it.
#[test]
fn a_server_whose_info_is_renamed_is_used() {
    let (t, server) = (Cli::new(), Server::start(&["--rename-command", "INFO", "other"]));
    let url = server.url();
    t.ok(&format!("push k --store {url}"));
    assert_eq!(t.ok(&format!("ls -o ids --store {url}")).lines().count(), 1);
    let said = t.run(&format!("doctor --store {url}"));
    assert!(said.out.contains("or the server has renamed it"), "{said:#?}");
}

#[test]
fn a_server_that_would_lose_jobs_is_refused_and_the_doctor_says_why() {
    let (t, server) = (Cli::new(), Server::start(&["--maxmemory-policy", "volatile-lru"]));
    let url = server.url();
    for command in ["ls", "push k", "bench"] {
        let said = t.run(&format!("{command} --store {url}"));
        said.fails(2, "unsupported", "the server deletes keys when its memory is full, and jobs with them");
        assert!(said.err.contains("maxmemory-policy noeviction"), "{said:#?}");
    }
    t.ok(&format!("push k --store {url}&eviction=allowed"));
    let said = t.run(&format!("doctor --store {url}"));
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(said.out.contains("fail  eviction      maxmemory-policy is volatile-lru"), "{said:#?}");
    assert!(!said.out.contains("eviction=allowed"), "{said:#?}");
}

#[test]
fn keys_of_others_and_clusters_are_refused() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let url = server.url();
    let key = format!("{}:{{0}}:q", url.split_once("prefix=").unwrap().1);
    let () = redis::cmd("RPUSH").arg(&key).arg("theirs").query(&mut connect(&server)).unwrap();
    for command in ["ls", "push k", "bench"] {
        let said = t.run(&format!("{command} --store {url}"));
        said.fails(1, "corrupt", &format!("key \"{key}\" is a list, where a hash of ours stands"));
        assert!(said.err.contains("choose another prefix"), "{said:#?}");
    }
    let cluster = Server::start(&["--cluster-enabled", "yes"]);
    let said = t.run(&format!("push k --store {}", cluster.url()));
    said.fails(2, "unsupported", "the server is part of a cluster");
}

#[test]
fn a_store_whose_state_is_gone_is_refused_until_a_repair() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let store = format!("--store {}", server.url());
    t.ok(&format!("push mail {store}"));
    let state = redis::cmd("KEYS").arg("*:s").query::<Vec<String>>(&mut connect(&server)).unwrap().remove(0);
    let () = redis::cmd("DEL").arg(&state).query(&mut connect(&server)).unwrap();
    for command in ["ls", "doctor", "audit", "push mail"] {
        let said = t.run(&format!("{command} {store}"));
        said.fails(1, "corrupt", "the state of the store is gone or damaged");
        assert!(said.err.contains("punctual audit --repair"), "{said:#?}");
    }
    let mended = t.ok(&format!("audit --repair {store}"));
    assert_eq!(mended, "fixed  corrupt: the state of the store was gone or damaged\n");
    assert_eq!(t.ok(&format!("audit --repair {store}")), "ok     1 job, each in exactly one state\n");
    t.ok(&format!("push mail {store}"));
}

#[test]
fn an_audit_says_what_it_mended_and_what_it_left() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let url = server.url();
    let (store, prefix) = (format!("--store {url}"), url.split_once("prefix=").unwrap().1);
    let key = format!("{prefix}:{{0}}:j");
    t.ok(&format!("push k {store}"));
    let mut raw = connect(&server);
    let torn: Vec<Vec<u8>> = redis::cmd("HKEYS").arg(&key).query(&mut raw).unwrap();
    let () = redis::cmd("HSET").arg(&key).arg(&torn).arg("x").query(&mut raw).unwrap();
    let found = t.run(&format!("audit {store}"));
    assert_eq!(found.code, Some(1), "{found:#?}");
    assert!(found.out.starts_with("fail   corrupt (queue default): can not be read"), "{found:#?}");
    assert!(found.out.ends_with("       fix  punctual audit --repair\n"), "{found:#?}");
    let mended = t.ok(&format!("audit --repair {store}"));
    assert!(mended.starts_with("fixed  corrupt (queue default): can not be read"), "{mended}");
    assert_eq!(t.ok(&format!("audit {store}")), "ok     1 job, each in exactly one state\n");
    // Of this one, a part of the payload is gone.
    t.feed(&format!("push k - --id {A} {store}"), format!("\"{}\"", "x".repeat(2_000))).ok();
    let (payloads, id) = (format!("{prefix}:{{0}}:b"), A.replace('-', ""));
    let id = u128::from_str_radix(&id, 16).unwrap().to_be_bytes();
    let () = redis::cmd("HSET").arg(&payloads).arg(&id).arg("x").query(&mut raw).unwrap();
    let left = t.run(&format!("audit --repair {store}"));
    assert_eq!(left.code, Some(1), "{left:#?}");
    assert!(left.out.ends_with("       what is left cannot be repaired automatically\n"), "{left:#?}");
    assert_eq!(t.run(&format!("audit --json --repair {store}")).code, Some(1));
}

#[test]
fn a_replica_takes_no_jobs_and_says_where_to_go() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let url = server.url();
    t.ok(&format!("push k --store {url}"));
    let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query(&mut connect(&server)).unwrap();
    for command in ["take", "queue pause q"] {
        let said = t.run(&format!("{command} --store {url}"));
        said.fails(5, "store_unavailable", "the server refused ");
        assert!(said.err.contains("\n  try   the address leads to a replica: name the primary"), "{said:#?}");
    }
    assert!(t.ok(&format!("stats --store {url}")).contains('1'), "it may be looked at");
    let said = t.run(&format!("doctor --store {url}"));
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(said.out.contains("fail  role          a replica of 127.0.0.1"), "{said:#?}");
}

#[test]
fn a_bench_that_is_interrupted_leaves_nothing_behind() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let url = format!("{}:in", server.url());
    let mut child = t.command(["bench", "--waiting", "10000", "--store", &url]).spawn().unwrap();
    let (mut told, mut line) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    while !line.contains("enqueue and run") {
        line.clear();
        assert_ne!(told.read_line(&mut line).unwrap(), 0, "it ended by itself");
    }
    let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connect(&server)).unwrap();
    let prefix = url.split_once("prefix=").unwrap().1;
    assert!(names.iter().all(|name| name.starts_with(&format!("{prefix}:bench-"))), "{names:?}");
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    std::thread::spawn(move || std::io::copy(&mut told, &mut std::io::sink()));
    assert_eq!(said(child).code, Some(130));
    assert_eq!(keys(&server), 0);
}

#[test]
fn shards_are_shown_and_changed() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let store = format!("--store {}", server.url());
    assert_eq!(t.json(&format!("shards {store}"))["count"], 1);
    let shards = t.json(&format!("shards 3 {store}"));
    assert_eq!((&shards["count"], shards["shards"].as_array().unwrap().len()), (&3.into(), 3));
    for key in 0..9 {
        t.run(&format!("push k --unique key-{key} {store}")).ok();
    }
    let fewer = t.json(&format!("shards 1 {store}"));
    let jobs = |of: &serde_json::Value| {
        of["shards"].as_array().unwrap().iter().map(|shard| shard["jobs"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((&fewer["count"], jobs(&fewer)), (&1.into(), 9));
    assert_eq!(fewer["shards"][2]["open"], false);
    assert_eq!(t.json(&format!("stats {store}"))["waiting"], 9);
    // A cap below the number of shards is one of a single shard.
    t.ok(&format!("shards 3 {store}"));
    t.run(&format!("queue set mail max_jobs=2 {store}")).fails(
        4,
        "conflict",
        "queue \"mail\" has max_jobs 2, too few to be shared by 3 shards",
    );
    t.ok(&format!("queue set mail max_jobs=2 placement=pinned {store}"));
    (0..2).for_each(|_| drop(t.ok(&format!("push k -q mail {store}"))));
    t.run(&format!("push k -q mail {store}")).fails(5, "store_full", "queue \"mail\" is full");
    assert_eq!(t.json(&format!("queue show mail {store}"))["settings"]["placement"], "pinned");
    t.run(&format!("shards 0 {store}")).fails(2, "invalid", "a store has 1 to 1024 shards, not 0");
    t.run("shards").fails(2, "unsupported", "only a store on Redis has shards");
}

#[test]
fn settings_of_many_processes_are_all_kept() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    t.ok(&format!("queue set mail order=fifo --store {}", server.url()));
    assert_eq!(crate::queue::groups_set_at_once(&t, &server.url()), 20);
}
