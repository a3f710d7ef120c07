//! What every command is told once: the configuration file, and the log.

use std::fs;

use crate::fixture::{A, Cli};

#[test]
fn every_command_finds_the_store_of_the_configuration_file() {
    let t = Cli::new();
    fs::write(t.path("punctual.toml"), "store = \"sqlite:other.db\"\n").unwrap();
    t.ok(&format!("push k --id {A}"));
    assert!(t.path("other.db").exists() && !t.path("punctual.db").exists());
    assert_eq!(t.json("stats")["waiting"], 1);
    assert_eq!(t.ok(&format!("ls -o ids --store sqlite:{}", t.path("other.db").display())).trim(), A);
    // Nearer words come first.
    let shown = t.json("config show");
    assert_eq!(
        (&shown["store"], &shown["store_origin"]),
        (&"sqlite:other.db".into(), &"punctual.toml".into())
    );
    let shown = t.json("config show --store redis://:secret@host/");
    assert_eq!((&shown["store"], &shown["store_origin"]), (&"redis://:***@host/".into(), &"--store".into()));
    fs::write(t.path("far.toml"), "store = \"sqlite:far.db\"\n").unwrap();
    assert_eq!(t.json("config show --config far.toml")["store"], "sqlite:far.db");
    let text = t.ok("config show");
    assert!(text.starts_with("store    sqlite:other.db  (punctual.toml)\n"), "{text}");
    fs::write(t.path("punctual.toml"), "sotre = 1\n").unwrap();
    let said = t.run("stats");
    assert_eq!(said.code, Some(2), "{said:#?}");
    assert!(said.err.contains("unknown field `sotre`"), "{said:#?}");
}

/// An address can have a password, also where somebody mistyped it.
#[test]
fn what_is_wrong_in_a_file_is_said_without_its_text() {
    let t = Cli::new();
    let files = [
        ("store = \"redis://ana:s3cret@h/0\nurl = 1\n", "line 1, column"),
        ("tz = 1\nstore = 's3cret\n", "line 2, column"),
        ("store = \"redis://ana:s3cret@h/0\" x\n", "line 1, column"),
        ("forward = \"amqp://ana:s3cret@h\"\n", "forward: invalid type: text"),
        ("store = [\"redis://ana:s3cret@h\"]\n", "store: invalid type"),
    ];
    for (text, place) in files {
        fs::write(t.path("punctual.toml"), text).unwrap();
        let said = t.run("config show");
        assert_eq!(said.code, Some(2), "{said:#?}");
        assert!(said.err.contains(place) && !format!("{said:?}").contains("s3cret"), "{text} {said:#?}");
    }
    for url in ["redis//ana:s3cret@h/0", "redis:/ana:s3cret@h", "ana:s3cret@h"] {
        fs::write(t.path("punctual.toml"), format!("store = \"{url}\"\n")).unwrap();
        for command in ["config show", "ls"] {
            let said = t.run(command);
            assert!(!format!("{said:?}").contains("s3cret"), "{url} {said:#?}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_failed_run_and_a_dead_job_are_a_line_each() {
    use rustix::process::{Pid, Signal, kill_process};

    use crate::fixture::said;

    for format in ["text", "json"] {
        let t = Cli::new();
        t.args(&["push", "k", "--id", A, "--max-attempts", "2", "--backoff", "fixed 100ms"]).ok();
        let args = ["work", "--exec", "echo broken >&2; exit 3", "--log-format", format];
        let worker = t.command(args).env_remove("RUST_LOG").spawn().unwrap();
        t.wait_for(A, "dead");
        kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
        let log = said(worker).err;
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(A)).collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert!(lines[0].contains("run failed") && lines[1].contains("job is dead"), "{log}");
        if format == "json" {
            let line: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
            assert_eq!(
                (&line["id"], &line["attempt"], &line["state"]),
                (&A.into(), &2.into(), &"dead".into())
            );
        }
    }
}

#[cfg(unix)]
#[test]
fn more_words_are_of_jobs_only_and_rust_log_has_the_last() {
    use rustix::process::{Pid, Signal, kill_process};

    use crate::fixture::said;

    let t = Cli::new();
    let log = |id: &str, verbose: &str, rust_log: Option<&str>| {
        let args = ["work", "--exec", "true"].into_iter().chain(verbose.split_whitespace());
        let mut command = t.command(args);
        match rust_log {
            Some(filter) => command.env("RUST_LOG", filter),
            None => command.env_remove("RUST_LOG"),
        };
        let worker = command.spawn().unwrap();
        t.ok(&format!("push k --id {id}"));
        t.wait_for(id, "done");
        kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
        said(worker).err
    };
    let more = log(A, "-v", None);
    assert!(more.contains("started") && more.contains("settled") && !more.contains("tv_sec"), "{more}");
    assert!(
        more.lines().filter(|line| line.contains("DEBUG")).all(|line| line.contains(" punctual: ")),
        "{more}"
    );
    assert!(!log(crate::fixture::B, "", None).contains("started"));
    assert!(log(crate::fixture::C, "", Some("punctual=debug")).contains("started"));
}

#[cfg(unix)]
#[test]
fn the_file_has_options_of_commands_and_the_command_line_comes_first() {
    use rustix::process::{Pid, Signal, kill_process};

    use crate::fixture::said;

    let t = Cli::new();
    let file =
        "tz = \"utc\"\n[work]\nexec = \"true\"\nqueue = [\"mail\", \"push\"]\nslots = 3\nresult = true\n";
    fs::write(t.path("punctual.toml"), file).unwrap();
    assert_eq!(t.json("config show")["tz"], "utc");
    assert_eq!(t.json("config show --tz Europe/Berlin")["tz"], "Europe/Berlin");
    assert_eq!(t.ok("config check"), "punctual.toml is valid\n");
    for (queue, line) in [("push", "work"), ("bulk", "work -q bulk")] {
        let id = t.json(&format!("push k -q {queue}"))["id"].as_str().unwrap().to_owned();
        let worker = t.command(line.split(' ')).spawn().unwrap();
        t.wait_for(&id, "done");
        kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
        assert_eq!(said(worker).code, Some(0));
    }
    // Its queues are those of the command line only.
    t.ok("push k -q mail");
    assert_eq!(t.json("stats")["waiting"], 1);
}

#[test]
fn a_wrong_option_of_the_file_is_told_with_its_place() {
    let t = Cli::new();
    for (text, why) in [
        ("[work]\nslot = 3\n", "work.slot: there is no such option"),
        ("[work]\nslots = \"many\"\n", "work.slots: invalid value 'many' for '--slots <N>'"),
        ("[work]\nresult = \"yes\"\n", "work.result: write true or false"),
        ("[work]\nslots = [1]\n", "work.slots: write a text or a number"),
        ("[work]\nstore = \"sqlite:x\"\n", "work.store: there is no such option"),
        ("color = \"green\"\n", "color: invalid value 'green' for '--color"),
        ("[nonsense]\n", "unknown field `nonsense`"),
    ] {
        fs::write(t.path("punctual.toml"), text).unwrap();
        for line in ["config check", "stats", "work"] {
            let said = t.run(line);
            assert_eq!(said.code, Some(2), "{text}: {said:#?}");
            assert!(said.err.contains(why) && said.err.contains("punctual.toml is not"), "{text}: {said:#?}");
        }
        // These need no file.
        assert_eq!(t.run("completions bash").code, Some(0), "{text}");
        assert_eq!(t.run("work --help").code, Some(0), "{text}");
    }
}

#[cfg(feature = "serve")]
#[test]
fn a_server_takes_its_options_from_the_file() {
    let t = Cli::new();
    fs::write(t.path("punctual.toml"), "[serve]\nlisten = \"0.0.0.0:0\"\nread_only = true\n").unwrap();
    t.run("serve").fails(2, "invalid", "will not listen on 0.0.0.0:0 without a token");
    t.run("serve --listen [::]:0").fails(2, "invalid", "will not listen on [::]:0 without a token");
    let mut command = t.command(["serve"]);
    let output = command.env("PUNCTUAL_LISTEN", "192.0.2.1:0").output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(err.contains("will not listen on 192.0.2.1:0"), "{err}");
    fs::write(t.path("punctual.toml"), "[serve]\ntls_cert = \"here.pem\"\n").unwrap();
    t.run("serve").fails(2, "invalid", "--tls-cert needs --tls-key");
    // One from the file, and the other one from the command line.
    t.run("serve --tls-key here.key").fails(2, "invalid", "could not use the file here.pem");
}

/// Only root can give a file to another user, so nobody else can make the case.
#[cfg(unix)]
#[test]
fn a_file_of_another_user_must_be_named() {
    let t = Cli::new();
    let file = t.path("punctual.toml");
    fs::write(&file, "store = \"sqlite:other.db\"\n").unwrap();
    if std::os::unix::fs::chown(&file, Some(65_534), None).is_ok() {
        t.run("stats").fails(2, "invalid", "punctual.toml belongs to another user");
        assert_eq!(t.json("config show --config punctual.toml")["store"], "sqlite:other.db");
    }
}
