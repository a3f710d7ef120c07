//! `ls`, `show`, `why`, `stats`, `upcoming`, `audit`, `doctor`.

use std::sync::Arc;

use punctual::{
    Client, NewJob, Payload, Timestamp,
    store::{
        CallId, QueueRequest, Reserve, Store as _,
        clock::{Clock, ManualClock},
        sqlite::{SqliteOptions, SqliteStore},
    },
};

use crate::fixture::{A, B, C, Cli, masked};

/// Three jobs: one scheduled, one ready, one cancelled.
fn three() -> Cli {
    let t = Cli::new();
    t.args(&[
        "push",
        "email.send",
        r#"{"to":"ana"}"#,
        "--in",
        "2h",
        "-q",
        "mail",
        "-p",
        "high",
        "--tag",
        "vip",
        "--id",
        A,
    ])
    .ok();
    t.ok(&format!("push report.build --at 2000-01-01T00:00:00Z --id {B}"));
    t.ok(&format!("push report.build --in 1d --id {C}"));
    t.args(&["cancel", C, "--reason", "not needed"]).ok();
    t
}

#[test]
fn ls_shows_the_newest_first() {
    let t = three();
    let said = t.run("ls");
    let due = |line: usize| {
        said.out
            .lines()
            .nth(line)
            .unwrap()
            .split("  ")
            .map(str::trim)
            .filter(|c| !c.is_empty())
            .nth(4)
            .unwrap()
            .to_owned()
    };
    assert_eq!(due(3), "in 2h");
    let lines: Vec<String> =
        said.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[0], "ID KIND QUEUE STATE DUE ATTEMPT LAST ERROR");
    assert!(
        lines[1] == "5c1e9f0c report.build default cancelled 1/20 not needed",
        "an ended job is not due: {lines:#?}"
    );
    assert!(lines[2].starts_with("5c1e9f0b report.build default ready "), "{lines:#?}");
    assert_eq!(lines[3], "5c1e9f0a email.send mail scheduled in 2h 1/20");
    assert_eq!(said.err, "3 jobs · searched 3 of 3\n");
}

#[cfg(unix)]
#[test]
fn an_ended_job_shows_no_due_time() {
    let t = Cli::new();
    let (dead, done) = (B, A);
    t.ok(&format!("push report.build --in 1d --id {C}"));
    t.args(&["cancel", C, "--reason", "not needed"]).ok();
    t.ok(&format!("push report.build --max-attempts 1 --id {dead}"));
    let worker = crate::exec::Worker::start(&t, "exit 1", "");
    t.wait_for(dead, "dead");
    worker.stop().ok();
    t.ok(&format!("push report.build --id {done}"));
    t.ok("take -o ids");
    for (id, state) in [(C, "cancelled"), (dead, "dead"), (done, "done")] {
        let listed = t.ok(&format!("ls --fields status -o ndjson id:{id}"));
        assert_eq!(listed, format!("{{\"status\":\"{state}\"}}\n"));
        let shown = t.ok(&format!("show {id}"));
        assert!(!shown.contains("\n  due "), "{shown}");
        assert!(shown.contains("\n  finished "), "{shown}");
        assert!(t.json(&format!("show {id}"))["run_at_ms"].is_u64(), "programs see when it was due");
    }
    let column = |lines: &str, name: &str| {
        let at = lines.lines().next().unwrap().find(name).unwrap();
        let cell = |line: &str| {
            line.get(at..).and_then(|rest| rest.split("  ").next()).unwrap_or_default().trim().to_owned()
        };
        lines.lines().skip(1).map(cell).collect::<Vec<_>>()
    };
    for line in ["ls", "ls -o wide"] {
        let lines = t.ok(line);
        assert_eq!(column(&lines, "DUE"), ["", "", ""], "{lines}");
    }
}

#[test]
fn ls_filters_and_prints_in_every_format() {
    let t = three();
    assert_eq!(t.ok("ls -o ids state:scheduled queue:mail"), format!("{A}\n"));
    assert_eq!(t.ok("ls -o ids -state:cancelled kind:report.*"), format!("{B}\n"));
    assert_eq!(t.ok("ls -o ids payload.to:ana"), format!("{A}\n"));
    assert_eq!(t.ok("ls -o ids -q mail"), format!("{A}\n"));
    assert_eq!(t.ok("ls -o ids due:<3h"), format!("{B}\n{A}\n"));
    assert_eq!(t.ok("ls -o ndjson").lines().count(), 3);
    let json = t.json("ls tag:vip");
    assert_eq!(
        (&json["jobs"][0]["id"], &json["total"], &json["next"]),
        (&A.into(), &3.into(), &serde_json::Value::Null)
    );
    assert_eq!(t.json("ls tag:none")["jobs"], serde_json::json!([]));
    let wide = t.ok("ls -o wide tag:vip");
    assert!(wide.contains(A) && wide.contains("high") && wide.contains("vip"), "{wide}");
    let nothing = t.run("ls tag:none");
    assert_eq!((nothing.out.as_str(), nothing.err.as_str()), ("", "0 jobs · searched 3 of 3\n"));
}

#[test]
fn ls_stops_at_its_limit_and_says_how_to_go_on() {
    let t = three();
    let said = t.run("ls -n 1 -o ids");
    assert_eq!(said.out, format!("{C}\n"));
    assert!(said.err.contains(&format!("continue with --after {C}, or --all")), "{}", said.err);
    assert_eq!(t.ok(&format!("ls -n 1 -o ids --after {C}")), format!("{B}\n"));
    assert_eq!(t.ok("ls --all -o ids"), format!("{C}\n{B}\n{A}\n"));
    assert_eq!(t.run("ls --quiet").err, "");
}

#[test]
fn show_tells_everything() {
    let t = three();
    let text = masked(&t.ok(&format!("show {A}")));
    assert_eq!(
        text,
        format!(
            "email.send  5c1e9f0a  scheduled, attempt 1/20 in 2h\n  \
             id        {A}\n  \
             queue     mail         priority high\n  \
             created   TIME\n  \
             due       TIME (in 2h)\n  \
             policy    timeout 5m, backoff exponential 5000ms..21600000ms\n  \
             tags      vip\n  \
             payload   {{\"to\":\"ana\"}}    12 bytes application/json\n"
        )
    );
    for part in ["5c1e9f0a", "9f0a5c1e9f0a", "0b3d5c1e9f0a"] {
        assert_eq!(
            t.run(&format!("show {part} -o ids")).code,
            Some(if part.starts_with('9') { 3 } else { 0 })
        );
    }
    let several = t.run("show 019dd2f1");
    several.fails(4, "conflict", "more than one job has 019dd2f1 in its id");
    let job = t.json(&format!("show {C}"));
    assert_eq!(
        (&job["status"], &job["reason"], &job["failures"]),
        (&"cancelled".into(), &"not needed".into(), &serde_json::json!([]))
    );
}

#[test]
fn why_names_what_holds_a_job_back() {
    let t = three();
    let text = masked(&t.ok(&format!("why {A}")));
    assert_eq!(text, format!("scheduled: the job is due TIME (in 2h)\n  try    punctual run-now {A}\n"));
    t.args(&["queue", "pause", "mail", "--reason", "smtp migration"]).ok();
    let paused = masked(&t.ok("why 5c1e9f0a"));
    assert!(paused.starts_with("scheduled: queue mail is paused (by ana, TIME ("), "{paused}");
    assert!(
        paused.contains(
            "\"smtp migration\")\n  also  the job is due TIME (in 2h)\n  try    punctual queue resume mail\n"
        ),
        "{paused}"
    );
    let json = t.json(&format!("why {A}"));
    assert_eq!(
        (&json["reasons"][0]["code"], &json["reasons"][1]["code"]),
        (&"paused".into(), &"not_due".into())
    );
    let ready = masked(&t.ok("why 5c1e9f0b"));
    assert!(
        ready.ends_with(
            "; queue default has 1 due and 0 running jobs\n  \
             also  no worker has reserved the job yet: no worker serves queue default, or all slots of its workers are busy\n  \
             also  no job of any queue is running; no run ended in the last hour; `punctual worker ls` also lists idle workers\n  \
             try    punctual work --exec … -q default    serves the queue; a worker logs its queues when it starts (work -v)\n"
        ),
        "{ready}"
    );
    assert!(
        masked(&t.ok(&format!("why {C}")))
            .starts_with("cancelled: the job was cancelled: not needed, TIME (")
    );
}

#[cfg(unix)]
#[test]
fn why_says_what_is_known_of_workers_that_serve_other_queues() {
    let t = Cli::new();
    t.ok(&format!("push report.build --id {B}"));
    t.ok(&format!("push email.send -q mail --id {A}"));
    let _worker = crate::exec::Worker::start(&t, "sleep 60", "-q mail --name mailer");
    t.wait_for(A, "running");
    let text = t.ok(&format!("why {B}"));
    assert!(!text.contains("is there a worker?"), "{text}");
    assert!(text.contains("no worker serves queue default, or all slots of its workers are busy"), "{text}");
    assert!(text.contains("jobs are running in queue mail, on worker mailer"), "{text}");
    let json = t.json(&format!("why {B}"));
    let codes: Vec<_> = json["reasons"].as_array().unwrap().iter().map(|reason| &reason["code"]).collect();
    assert_eq!(codes, ["ready", "unreserved", "workers"]);
}

#[test]
fn stats_counts() {
    let t = three();
    let text = t.ok("stats");
    assert!(
        text.contains("waiting    2  (due 1, retrying 0)\n") && text.contains("cancelled  1\n"),
        "{text}"
    );
    let json = t.json("stats -q mail");
    assert_eq!(
        (&json["queue"], &json["waiting"], &json["durability"]),
        (&"mail".into(), &1.into(), &"full".into())
    );
}

#[test]
fn upcoming_shows_when() {
    let t = three();
    let text = masked(&t.ok("upcoming --for 4h"));
    assert!(
        text.starts_with("now ") && text.contains(" +4h   1 due · peak 1 at TIME–TIME · overdue 1\n"),
        "{text}"
    );
    let json = t.json("upcoming --for 4h -q mail");
    assert_eq!((&json["overdue"], &json["complete"]), (&0.into(), &true.into()));
    assert_eq!(
        json["buckets"].as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).sum::<u64>(),
        1
    );
}

#[test]
fn a_sound_store_passes_its_audit_and_its_doctor() {
    let t = three();
    assert_eq!(t.ok("audit"), "ok     3 jobs, each in exactly one state\n");
    let json = t.json("audit --repair");
    assert_eq!((&json["ok"], &json["findings"]), (&true.into(), &serde_json::json!([])));
    assert!(t.ok("doctor").contains("ok "));
    assert!(t.json("doctor").as_array().is_some_and(|checks| !checks.is_empty()));
}

/// A worker reserved a job an hour ago and died, and nobody serves the queue.
#[test]
fn the_doctor_reports_a_running_job_whose_lease_is_over() {
    let t = Cli::new();
    let hour_ago = Timestamp::saturating_from_ms(Clock::System.now().as_ms() - 3_600_000);
    let options =
        SqliteOptions { clock: Clock::Manual(ManualClock::new(hour_ago)), ..SqliteOptions::default() };
    let store = Arc::new(SqliteStore::open(t.path("punctual.db"), options).unwrap());
    let client = Client::new(store.clone());
    let queue = QueueRequest { queue: "mail".into(), share: 1, at_most: 1 };
    let call = CallId { instance: 1, number: 1 };
    let request = Reserve { call, worker: "w".into(), queues: vec![queue], n: 1, lease: None, company: true };
    let job = NewJob::new(A.parse().unwrap(), "k", "mail", Payload::json("1"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(client.push(vec![job])).unwrap();
    assert_eq!(runtime.block_on(store.reserve(&request)).unwrap().jobs.len(), 1);
    drop((client, store, runtime));
    let said = t.ok("doctor");
    assert!(
        said.contains(&format!(
            "warn  leases        1 running job whose lease is over, for example {A} of queue mail"
        )),
        "{said}"
    );
}

#[test]
fn of_a_listing_only_some_fields_may_be_asked_for() {
    let t = three();
    assert_eq!(
        t.ok("ls --fields status,id,tags -o ndjson queue:mail"),
        format!("{{\"status\":\"scheduled\",\"id\":\"{A}\",\"tags\":[\"vip\"]}}\n")
    );
    let listed = t.json("ls --fields id,reason,id tag:vip");
    assert_eq!(listed["jobs"], serde_json::json!([{"id": A, "reason": null}]), "what is not there is null");
    assert_eq!(listed["searched"], 3);
    assert_eq!(
        t.ok("ls --fields kind,priority,payload,timeout_ms,reason state:scheduled"),
        "KIND        PRIORITY  PAYLOAD       TIMEOUT  REASON\n\
         email.send  high      {\"to\":\"ana\"}  5m\n"
    );
    assert_eq!(masked(&t.ok("ls --fields run_at_ms state:scheduled")), "RUN AT\nTIME\n");
    assert_eq!(
        t.ok(&format!("show {A} --fields kind,failures --json")),
        "{\"kind\":\"email.send\",\"failures\":[]}\n"
    );
    assert_eq!(t.ok(&format!("show {A} --fields kind")), "KIND\nemail.send\n");
    assert_eq!(
        t.ok("queue ls --fields name,counts.waiting,settings.order -o ndjson"),
        "{\"name\":\"default\",\"counts.waiting\":1,\"settings.order\":\"fifo\"}\n\
         {\"name\":\"mail\",\"counts.waiting\":1,\"settings.order\":\"fifo\"}\n"
    );
    assert_eq!(t.ok("queue show mail --fields counts.due"), "COUNTS DUE\n         0\n");
    assert_eq!(t.ok("take --fields id -o ndjson"), format!("{{\"id\":\"{B}\"}}\n"));
}

#[test]
fn a_field_that_is_none_is_told_before_anything_is_done() {
    let t = three();
    t.run("ls --fields id,kimd").fails(2, "invalid", "unknown field `kimd`        did you mean `kind`?");
    let said = t.run("queue ls --fields nonsense");
    said.fails(2, "invalid", "unknown field `nonsense`");
    assert!(said.err.contains("\n  try   the fields are name, settings, settings.paused, "), "{}", said.err);
    t.run("take --fields nonsense").fails(2, "invalid", "unknown field `nonsense`");
    assert_eq!(t.json(&format!("show {B}"))["state"], "waiting", "nothing was taken");
    for line in ["stats --fields id", "ls -o ids --fields id", "push k --fields id"] {
        t.run(line).fails(2, "invalid", "--fields does not work with this command or format");
    }
}

#[test]
fn colours_are_for_terminals_unless_they_are_asked_for() {
    let t = three();
    let coloured = |line: &str, environment: &[(&str, &str)]| {
        let mut command = t.command(line.split_whitespace());
        let output = command.envs(environment.iter().copied()).output().unwrap();
        (output.stdout.contains(&0x1b), output.stderr.contains(&0x1b))
    };
    for line in ["ls", "ls -o wide", "doctor", "audit", "why 5c1e9f0a"] {
        assert_eq!(coloured(line, &[]), (false, false), "{line}: this is no terminal");
        let always = format!("--color always {line}");
        assert_eq!(coloured(&always, &[("NO_COLOR", "1")]), (true, false), "{line}: flags come first");
        assert_eq!(coloured(line, &[("PUNCTUAL_COLOR", "always")]), (true, false), "{line}");
        let never = format!("{line} --color=never");
        assert_eq!(coloured(&never, &[("PUNCTUAL_COLOR", "always")]), (false, false), "{line}");
    }
    assert_eq!(coloured("ls --json --color always", &[]), (false, false), "programs get none");
    for wrong in ["show 123456", "ls kimd:x", "lss", "ls -n 0"] {
        assert_eq!(coloured(wrong, &[]), (false, false), "{wrong}");
        assert_eq!(coloured(&format!("{wrong} --color always"), &[]), (false, true), "{wrong}");
    }
    t.run("ls --color sometimes").is_usage("sometimes");
}

#[test]
fn a_job_cannot_write_to_the_terminal() {
    let t = Cli::new();
    // As a schedule of an older version has made it: no other new job has such a kind.
    let job = r#"{"kind":"k\u001b[2J","payload":"\u202eevil","tags":["a\tb"],"headers":{"schedule":"old"}}"#;
    t.feed("push --batch -", job).ok();
    let id = t.ok("ls -o ids");
    for line in ["ls".to_owned(), "ls -o wide".into(), format!("show {id}"), format!("why {id}")] {
        let text = t.ok(&line);
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\t']), "{line}: {text:?}");
    }
}

/// Everything that only looks.
const LOOKS: [&str; 10] = [
    "stats",
    "ls",
    "show 019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f0a",
    "why 019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f0a",
    "queue ls",
    "upcoming",
    "top -n 1",
    "audit",
    "doctor",
    "cancel --where kind:k --dry-run",
];

#[test]
fn a_file_that_is_opened_to_be_looked_at_is_left_as_it_is() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    std::fs::create_dir(t.path("apart")).unwrap();
    std::fs::copy(t.path("punctual.db"), t.path("apart/jobs.db")).unwrap();
    for line in LOOKS {
        t.ok(&format!("{line} --store sqlite:apart/jobs.db?mode=ro"));
    }
    for line in ["push k", "cancel --where kind:k -y", "take", "queue pause mail"] {
        let said = t.run(&format!("{line} --store sqlite:apart/jobs.db?mode=ro"));
        said.fails(2, "unsupported", "");
        assert!(said.err.contains("was opened for reading only; nothing was written"), "{said:#?}");
    }
    let left: Vec<_> = std::fs::read_dir(t.path("apart")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name == "jobs.db-lock"), "{left:?}");
    t.run("stats --store sqlite:none.db?mode=ro").fails(5, "store_unavailable", "there is no store at");
}

#[cfg(unix)]
#[test]
fn whoever_only_looks_need_not_be_able_to_write_the_file() {
    use std::{
        fs::{self, Permissions},
        os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    };

    const NOBODY: u32 = 65_534;
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    fs::set_permissions(t.path("punctual.db"), Permissions::from_mode(0o444)).unwrap();
    // A process that may write has the file open.
    let open = rusqlite::Connection::open(t.path("punctual.db")).unwrap();
    let count = || open.query_row("SELECT count(*) FROM punctual_meta", [], |row| row.get::<_, i64>(0));
    count().unwrap();
    fs::set_permissions(t.path(""), Permissions::from_mode(0o555)).unwrap();
    let run = |line: &str| {
        let mut command = t.command(line.split(' '));
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        crate::fixture::said(command.spawn().unwrap())
    };
    let said: Vec<_> = LOOKS.iter().map(|line| (line, run(line))).collect();
    let refused = run("push k");
    drop(open);
    let alone = run("stats");
    fs::set_permissions(t.path(""), Permissions::from_mode(0o755)).unwrap();
    for (line, said) in said {
        assert_eq!(said.code, Some(0), "{line}: {said:#?}");
    }
    assert_eq!(refused.code, Some(5), "{refused:#?}");
    // At rest there is no -shm, and this user can't make one.
    alone.fails(5, "store_unavailable", "could not open");
    assert!(alone.err.contains("start a worker, or read a copy"), "{alone:#?}");
}
