//! Programs of two versions on one store, as while a newer one is rolled out: one of them stops, and changes nothing.
//!
//! `scripts/versions` builds the next version, whose schema and format have the next numbers, and names its program in
//! `PUNCTUAL_NEXT`. Without it, a number is written into the store as that program would write it.

use std::{collections::BTreeMap, env, ffi::OsString, fmt::Write as _, fs};

use crate::{
    exec::Worker,
    fixture::{A, Cli, said},
    redis::server::Server,
};

/// A store as its own tools show it.
enum Place {
    File,
    Server(Box<Server>, String),
}

impl Place {
    fn url(&self) -> &str {
        match self {
            Self::File => "sqlite:punctual.db",
            Self::Server(_, url) => url,
        }
    }

    fn file(t: &Cli) -> rusqlite::Connection {
        let file = rusqlite::Connection::open(t.path("punctual.db")).unwrap();
        file.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
        file
    }

    /// What a version does whose schema or format has the next number.
    fn upgrade(&self, t: &Cli) {
        match self {
            Self::File if let Some(next) = next() => drop(t.run_as(&next, "push upgraded").ok()),
            Self::File => {
                let up = "UPDATE punctual_meta SET v = v + 1 WHERE k = 'schema'";
                assert_eq!(Self::file(t).execute(up, []).unwrap(), 1);
            }
            Self::Server(server, url) => move_format(server, url, 1),
        }
    }

    /// All that there is, without notifications: a worker that waits takes them and puts them back with commands of the
    /// server, which go by no format.
    fn picture(&self, t: &Cli) -> BTreeMap<String, Vec<u8>> {
        match self {
            Self::File => {
                let file = Self::file(t);
                let mut names = file.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
                let names: Vec<String> =
                    names.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
                let rows = |name: &String| {
                    let mut all = file.prepare(&format!("SELECT * FROM {name}")).unwrap();
                    let (columns, mut text) = (all.column_count(), String::new());
                    let mut rows = all.query([]).unwrap();
                    while let Some(row) = rows.next().unwrap() {
                        for column in 0..columns {
                            write!(text, "{:?} ", row.get_ref(column).unwrap()).unwrap();
                        }
                    }
                    text.into_bytes()
                };
                names.iter().map(|name| (name.clone(), rows(name))).collect()
            }
            Self::Server(server, _) => {
                let mut raw = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
                let keys: Vec<String> = redis::cmd("KEYS").arg("*{*").query(&mut raw).unwrap();
                keys.into_iter()
                    .filter(|key| !key.contains("}:wake:") && !key.contains("}:w:"))
                    .map(|key| (key.clone(), redis::cmd("DUMP").arg(key).query(&mut raw).unwrap()))
                    .collect()
            }
        }
    }
}

/// Writes another format's number into a store on a server.
fn move_format(server: &Server, url: &str, by: i32) {
    let write = "local row = redis.call('HGET', KEYS[1], 'turn')
        local format = struct.unpack('>I2', row, 33)
        redis.call('HSET', KEYS[1], 'turn', string.sub(row, 1, 32) .. struct.pack('>I2', format + ARGV[1]))";
    let state = format!("{}:{{0}}:s", url.split_once("prefix=").unwrap().1);
    server.say(&["EVAL", write, "1", &state, &by.to_string()]);
}

/// The program of the next version.
fn next() -> Option<OsString> {
    env::var_os("PUNCTUAL_NEXT")
}

/// Commands that look, write, take and mend.
fn commands() -> [String; 8] {
    let cancel = format!("cancel {A}");
    [
        "push k",
        "take",
        "ls",
        "stats",
        "queue pause default",
        "queue set default order=lifo",
        &cancel,
        "audit --repair",
    ]
    .map(str::to_owned)
}

#[test]
fn a_worker_and_commands_of_an_older_version_stop_and_change_nothing() {
    let server = Server::start(&[]);
    let url = server.url();
    for place in [Place::File, Place::Server(Box::new(server), url)] {
        let t = Cli::new();
        let store = format!("--store {}", place.url());
        t.ok(&format!("push k --id {A} {store}"));
        let command = "echo up > started; while [ ! -e go ]; do sleep 0.01; done";
        let mut worker = Worker::start(&t, command, &store);
        t.wait_for_file("started");
        place.upgrade(&t);
        let before = place.picture(&t);
        fs::write(t.path("go"), "").unwrap();
        let stopped = said(worker.0.take().unwrap());
        assert_eq!(stopped.code, Some(2), "{stopped:#?}");
        for words in ["nothing was changed", "\n  try   ", "\n  code  outdated (exit 2)\n"] {
            assert!(stopped.err.contains(words), "{stopped:#?}");
        }
        for command in commands() {
            let refused = t.run(&format!("{command} {store}"));
            assert_eq!(refused.code, Some(2), "{command}: {refused:#?}");
            assert!(refused.err.contains("code  outdated (exit 2)"), "{command}: {refused:#?}");
        }
        let after = place.picture(&t);
        let differs = |key: &&String| before.get(*key) != after.get(*key);
        let changed: Vec<&String> = before.keys().chain(after.keys()).filter(differs).collect();
        assert!(changed.is_empty(), "{}: these were changed: {changed:?}", place.url());
        if let Some(next) = next() {
            let stats = t.run_as(&next, &format!("stats --json {store}")).ok();
            let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
            assert_eq!((&stats["running"], &stats["dead"]), (&1.into(), &0.into()), "{stats}");
        }
    }
}

#[test]
fn a_newer_version_changes_nothing_in_a_store_that_it_cannot_upgrade() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let url = server.url();
    let store = format!("--store {url}");
    t.ok(&format!("push k --id {A} {store}"));
    let own = OsString::from(env!("CARGO_BIN_EXE_punctual"));
    // The two numbers before its own are those of formats which it upgrades.
    let by = -3;
    move_format(&server, &url, by);
    let place = Place::Server(Box::new(server), url);
    let before = place.picture(&t);
    for command in commands() {
        let refused = t.run_as(next().as_ref().unwrap_or(&own), &format!("{command} {store}"));
        assert_eq!(refused.code, Some(2), "{command}: {refused:#?}");
        for words in ["nothing was changed", "\n  try   ", "\n  code  unsupported (exit 2)\n"] {
            assert!(refused.err.contains(words), "{command}: {refused:#?}");
        }
    }
    assert!(before == place.picture(&t), "something was changed");
    let Place::Server(server, url) = &place else { unreachable!("it was made so") };
    move_format(server, url, -by);
    assert!(t.ok(&format!("take --json {store}")).contains(A), "the earlier version goes on");
}
