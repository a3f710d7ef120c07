//! Programs of two versions on one store, as while a newer one is rolled out: the older one stops, and changes nothing.

use std::{collections::BTreeMap, fmt::Write as _, fs};

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
            Self::File => {
                let up = "UPDATE punctual_meta SET v = v + 1 WHERE k = 'schema'";
                assert_eq!(Self::file(t).execute(up, []).unwrap(), 1);
            }
            Self::Server(server, url) => {
                let up = "local row = redis.call('HGET', KEYS[1], 'turn')
                    local format = struct.unpack('>I2', row, 33)
                    redis.call('HSET', KEYS[1], 'turn', string.sub(row, 1, 32) .. struct.pack('>I2', format + 1))";
                let state = format!("{}:{{0}}:s", url.split_once("prefix=").unwrap().1);
                server.say(&["EVAL", up, "1", &state]);
            }
        }
    }

    /// All that there is.
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
                    .map(|key| (key.clone(), redis::cmd("DUMP").arg(key).query(&mut raw).unwrap()))
                    .collect()
            }
        }
    }
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
        for command in [
            "push k",
            "take",
            "ls",
            "stats",
            "queue pause default",
            "queue set default order=lifo",
            &format!("cancel {A}"),
            "audit --repair",
        ] {
            let refused = t.run(&format!("{command} {store}"));
            assert_eq!(refused.code, Some(2), "{command}: {refused:#?}");
            assert!(refused.err.contains("code  outdated (exit 2)"), "{command}: {refused:#?}");
        }
        assert!(before == place.picture(&t), "{}: something was changed", place.url());
    }
}
