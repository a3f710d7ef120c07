//! `forward`: jobs handed over by a process of its own, here to a Redis stream; and what it refuses before it begins.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Stdio},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    fixture::{A, B, Cli, Said, said, wait},
    redis::server::Server,
};

/// A forwarder that ends with its test.
struct Forwarder(Option<Child>);

impl Forwarder {
    fn start(t: &Cli, args: &[&str]) -> Self {
        Self(Some(t.command([&["forward"], args].concat()).spawn().unwrap()))
    }

    /// Asks it to end, and hears what it says.
    fn stop(mut self) -> Said {
        let child = self.0.take().unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        said(child)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The address of a stream.
fn stream(server: &Server, options: &str) -> String {
    format!("redis+unix://{}?{options}", server.socket().display())
}

#[test]
fn jobs_go_where_they_are_sent_and_are_done() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let to = stream(&server, "stream=out.{header.tenant}");
    let forwarder = Forwarder::start(&t, &["-q", "mail", "--to", &to, "--json"]);
    t.args(&["push", "k", r#"{"n":1}"#, "-q", "mail", "--id", A, "--header", "tenant=acme"]).ok();
    t.args(&["push", "k", r#"{"n":2}"#, "-q", "mail", "--id", B]).ok();
    t.wait_for(A, "done");
    assert_eq!(t.wait_for(B, "dead")["reason"], "the job has no header \"tenant\"");
    assert_eq!(server.say(&["XLEN", "out.acme"]), "1");
    let entry = server.say(&["XRANGE", "out.acme", "-", "+"]);
    for part in [A, r#"{"n":1}"#, "application/json", "header.tenant\nacme", "queue\nmail"] {
        assert!(entry.contains(part), "{part}: {entry}");
    }
    let ended: Value = serde_json::from_str(&forwarder.stop().ok()).unwrap();
    assert_eq!((&ended["from"], &ended["forwarded"], &ended["dead"]), (&json!("mail"), &json!(1), &json!(1)));
}

#[test]
fn one_process_runs_all_that_the_file_has() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    fs::write(t.path("address"), stream(&server, "stream=two") + "\n").unwrap();
    let file = format!(
        "store = \"sqlite:other.db\"\n[[forward]]\nfrom = \"one\"\nto = \"{}\"\n[[forward]]\nfrom = \"two\"\nto_file = \"address\"\nslots = 4\n",
        stream(&server, "stream=one")
    );
    fs::write(t.path("punctual.toml"), file).unwrap();
    let forwarder = Forwarder::start(&t, &[]);
    for queue in ["one", "two"] {
        t.ok(&format!("push k -q {queue} --store sqlite:other.db"));
    }
    for name in ["one", "two"] {
        let length = || server.say(&["XLEN", name]);
        wait(|| (length() == "1").then_some(()), || format!("{name}: {}", length()));
    }
    let said = forwarder.stop();
    assert!(said.err.contains("forwarding queue one to redis+unix://"), "{said:#?}");
    assert!(said.err.contains("(4 at once)") && said.err.contains(": 1 forwarded"), "{said:#?}");
    said.ok();
}

#[test]
fn a_test_job_tells_whether_it_would_work() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let said = t.args(&["forward", "--test", "--to", &stream(&server, "stream=out")]);
    assert!(said.ok().trim_end().ends_with("confirmed"));
    assert_eq!(server.say(&["XLEN", "out"]), "1");
    server.say(&["SET", "text", "1"]);
    let said = t.args(&["forward", "--test", "--json", "--to", &stream(&server, "stream=text")]);
    assert!(said.err.contains(r#""message":"1 receiver did not accept the test job""#), "{said:#?}");
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(said.lines()[0]["error"].as_str().unwrap().contains("WRONGTYPE"), "{said:#?}");
    assert!(!t.path("punctual.db").exists(), "no store is needed");
}

#[test]
fn what_is_away_is_waited_for_and_what_is_wrong_is_told() {
    let (t, server) = (Cli::new(), Server::start(&["--requirepass", "secret"]));
    let wrong = t.args(&["forward", "--to", &stream(&server, "stream=out&pass=none")]);
    assert_eq!(wrong.code, Some(2), "{wrong:#?}");
    assert!(!wrong.err.contains("none"), "{wrong:#?}");
    // Nobody is there: it waits, and says so.
    let forwarder = Forwarder::start(&t, &["--to", "redis+unix:///nowhere/socket?stream=out"]);
    t.ok(&format!("push k --id {A}"));
    t.wait_for(A, "running");
    let said = forwarder.stop();
    assert!(said.err.contains("wait until it can be reached"), "{said:#?}");
    assert_eq!(t.json(&format!("show {A}"))["attempt"], 1, "no attempt is spent");
}

#[test]
fn what_is_no_address_is_refused_before_anything_else() {
    let t = Cli::new();
    for (to, message) in [
        ("amqp//nowhere", "this is no address to forward to"),
        ("amqp://", "the address names no broker"),
        ("amp://host?routing_key=x", "jobs can't be forwarded to amp://"),
        ("amqp://host", "the address names neither an exchange nor a routing key"),
        ("amqp://host?routing_key={knd}", "{knd} is no field of a job"),
        ("amqp://host?routing_key={kind", "a brace has no other half, at character 1"),
        ("amqp://host?routing_key=a&routing_key=b", "the address has the option routing_key twice"),
        ("amqp://host?routing_key=a&exchnge=b", "the address has no option exchnge"),
        ("amqp://host?routing_key=a&answer=1", "\"1\" is not a duration"),
        ("https://127.0.0.1/hook", ""),
        ("https://[::ffff:10.0.0.1]/hook", ""),
        ("http://example.com/hook", ""),
        ("https://ana@example.com/hook", ""),
    ] {
        let said = t.args(&["forward", "--to", to]);
        said.fails(2, "invalid", message);
    }
    assert!(!t.path("punctual.db").exists(), "no store is made of a slip");
}

#[test]
fn what_is_no_configuration_is_refused() {
    let t = Cli::new();
    t.run("forward").fails(2, "invalid", "there is no configuration file");
    t.run("forward --config none.toml").fails(2, "invalid", "could not read none.toml");
    for (text, why) in [
        ("forward = 1", "forward: invalid type"),
        ("[[forward]]\nto = \"redis://h?stream=s\"", "missing field `from`"),
        ("[[forward]]\nfrom = \"a\"\nfrm = \"b\"", "forward[0].frm: unknown field `frm`"),
        ("[[forwards]]\nfrom = \"a\"", "unknown field `forwards`"),
        ("[[forward]]\nfrom = \"a\"", "a [[forward]] table needs to or to_file, and not both"),
        ("store = \"sqlite:x.db\"", "the configuration file has no [[forward]] table"),
        ("[[forward", "expected"),
    ] {
        fs::write(t.path("punctual.toml"), text).unwrap();
        let said = t.run("forward");
        assert_eq!(said.code, Some(2), "{text}: {said:#?}");
        assert!(said.err.contains(why), "{text}: {said:#?}");
    }
    let twice = "[[forward]]\nfrom = \"a\"\nto = \"redis://h?stream=s\"\n".repeat(2);
    fs::write(t.path("punctual.toml"), twice).unwrap();
    t.run("forward").fails(2, "invalid", "queue a is forwarded twice");
    t.run("forward -q mail").is_usage("--to");
}

#[test]
fn one_other_side_that_refuses_us_holds_up_no_other() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let closed = Server::start(&["--requirepass", "secret"]);
    let route = |from: &str, to: String| format!("[[forward]]\nfrom = \"{from}\"\nto = \"{to}\"\n");
    let bad = route("bad", stream(&closed, "stream=out&pass=none"));
    fs::write(t.path("punctual.toml"), bad.clone() + &route("good", stream(&server, "stream=out"))).unwrap();
    let forwarder = Forwarder::start(&t, &[]);
    t.ok(&format!("push k -q good --id {A}"));
    t.wait_for(A, "done");
    let said = forwarder.stop();
    assert!(said.err.contains("queue bad waits"), "{said:#?}");
    assert_eq!(said.code, Some(0), "{said:#?}");
    // Where none of them takes us the process says so and ends.
    fs::write(t.path("punctual.toml"), bad).unwrap();
    assert_eq!(t.run("forward").code, Some(2));
}

#[test]
fn a_slip_in_an_address_prints_nothing_secret() {
    let t = Cli::new();
    for to in ["https://hooks.example/services/T0/B0/hidden{kind", "https://hooks.example/{T0/B0/hidden}"] {
        let said = t.args(&["forward", "--to", to]);
        assert_eq!(said.code, Some(2), "{said:#?}");
        assert!(!said.err.contains("hidden") && !said.err.contains("T0"), "{said:#?}");
    }
}

/// Receivers on all addresses of this machine, which keep their connections for as long as the other side does.
fn receivers() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || drop(stream.map(answer)));
        }
    });
    port
}

/// Takes every request of a connection.
fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(n) = line.strip_prefix("content-length:") {
                length = n.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        stream.read_exact(&mut vec![0; length])?;
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    }
}

/// Each of many customers has an address of its own, and the process fewer descriptors than there are customers.
#[test]
fn a_process_short_of_descriptors_spends_no_attempt() {
    const CUSTOMERS: u32 = 200;
    let (t, port) = (Cli::new(), receivers());
    let jobs = (1..=CUSTOMERS).map(|n| {
        let headers = json!({ "url": format!("http://127.0.0.{n}:{port}/") });
        json!({ "kind": "k", "queue": "mail", "max_attempts": 1, "headers": headers }).to_string() + "\n"
    });
    t.feed("push --batch -", jobs.collect::<String>()).ok();
    let mut shell = std::process::Command::new("sh");
    let line = ["forward", "-q", "mail", "--to", "webhook:{header.url}", "--allow-private", "--slots", "16"];
    shell.args(["-c", "ulimit -n 96; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_punctual")]).args(line);
    shell.current_dir(t.path("")).env_remove("PUNCTUAL_STORE").stdin(Stdio::null());
    let forwarder = Forwarder(Some(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()));
    let ended = || {
        let stats = t.json("stats");
        let (done, dead) = (stats["done"].as_u64().unwrap(), stats["dead"].as_u64().unwrap());
        Some((done, dead)).filter(|(done, dead)| done + dead == u64::from(CUSTOMERS))
    };
    let ended = wait(ended, || format!("they never ended: {}", t.json("stats")));
    assert_eq!(ended, (CUSTOMERS.into(), 0), "{:#?}", forwarder.stop());
}
