//! `punctual serve`: the command line against it, rights of tokens, and how it ends.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use crate::{
    exec::signal,
    fixture::{Cli, Said, said, wait},
    server_page::{post, send, send_to},
};

/// A server of a store, and the command line with the server as its store.
pub(crate) struct Served {
    behind: Cli,
    front: Cli,
    pub(crate) url: String,
    child: Child,
}

impl Served {
    pub(crate) fn start(behind: Cli, options: &str) -> Self {
        let options = options.split(' ').filter(|option| !option.is_empty()).map(str::to_owned);
        let args = ["serve", "--listen", "127.0.0.1:0"].map(str::to_owned).into_iter().chain(options);
        let mut child = behind.command(args).stderr(Stdio::piped()).spawn().unwrap();
        // The last of two lines that it prints when the port answers.
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line =
            lines.find_map(|line| line.unwrap().strip_prefix("store      ").map(str::to_owned)).unwrap();
        let url = line.split(' ').next().unwrap().to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self { front: Cli::with_store(&url), behind, url, child }
    }

    /// A command with a token.
    fn with(&self, token: &str, line: &str) -> Said {
        let file = self.front.path("token");
        std::fs::write(&file, token).unwrap();
        Cli::with_store(&format!("{}?token_file={}", self.url, file.display())).run(line)
    }

    /// Runs a command on the store behind the server.
    pub(crate) fn behind(&self, line: &str) -> String {
        self.behind.ok(line)
    }

    /// The command line on the store behind the server.
    pub(crate) fn store(&self) -> &Cli {
        &self.behind
    }

    /// The id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn token(&self, options: &str) -> String {
        let made = self.behind.json(&format!("token new someone {options}"));
        made["token"].as_str().unwrap().to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn commands_work_through_a_server_as_they_do_on_its_store() {
    let served = Served::start(Cli::new(), "");
    let id = served.front.json("push k [1,2] -q mail")["id"].as_str().unwrap().to_owned();
    for line in [format!("show {id} -o json"), "ls -o ndjson".to_owned(), "queue ls -o ndjson".to_owned()] {
        let (front, behind) = (served.front.run(&line), served.behind.run(&line));
        assert_eq!((front.code, behind.code), (Some(0), Some(0)), "{front:#?}");
        let without_age = |text: &str| {
            let fields = text.split(',').filter(|field| !field.contains("oldest_due_ms"));
            fields.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(without_age(&front.out), without_age(&behind.out), "{line}");
    }
    served.front.ok("queue pause mail --reason test");
    assert!(served.behind.json("queue show mail")["settings"]["paused"].is_object());
    served.front.ok("queue resume mail");
    let mut worker =
        served.front.command("work -q mail --exec true".split(' ').map(str::to_owned)).spawn().unwrap();
    served.behind.wait_for(&id, "done");
    signal(&worker, rustix::process::Signal::TERM);
    assert!(worker.wait().unwrap().success());
}

#[test]
fn a_token_is_needed_as_soon_as_there_is_one_and_allows_what_its_role_does() {
    let served = Served::start(Cli::new(), "");
    served.front.ok("push k -q mail");
    let (reader, operator, admin) = (
        served.token("--role read"),
        served.token("--role operate --queue mail"),
        served.token("--role admin"),
    );
    // The server believes for up to a second that there are no tokens.
    wait(
        || Some(served.front.run("stats")).filter(|said| said.code != Some(0)),
        || "it never asked for a token".to_owned(),
    )
    .fails(6, "unauthenticated", "the request has no token");
    assert_eq!(served.with(&reader, "stats").code, Some(0));
    served.with(&reader, "push k -q mail").fails(6, "forbidden", "the request needs the role operate");
    assert_eq!(served.with(&operator, "push k -q mail").code, Some(0));
    served.with(&operator, "push k -q bulk").fails(6, "forbidden", "the token is not for the queue \"bulk\"");
    served.with(&operator, "queue purge mail --yes").fails(
        6,
        "forbidden",
        "the request needs the role admin",
    );
    assert_eq!(served.with(&admin, "queue purge mail --yes").code, Some(0));
    served.with("pt_00000000_00", "stats").fails(6, "unauthenticated", "the token is not valid");
}

/// A worker also asks for publications and schedules, which a token for some queues does not cover.
#[test]
fn a_worker_with_a_token_for_its_queue_works_without_complaint() {
    let served = Served::start(Cli::new(), "");
    served.behind.ok("push k -q mail");
    let file = served.front.path("token");
    std::fs::write(&file, served.token("--role operate --queue mail")).unwrap();
    let front = Cli::with_store(&format!("{}?token_file={}", served.url, file.display()));
    // Until then the server believes that there are no tokens.
    wait(
        || Some(()).filter(|()| served.front.run("stats").code != Some(0)),
        || "no token is needed".to_owned(),
    );
    let worker = front.command("work -q mail --exec true".split(' ')).spawn().unwrap();
    let done = || Some(served.behind.json("stats")).filter(|stats| stats["done"] == 1);
    wait(done, || "the job was never done".to_owned());
    signal(&worker, rustix::process::Signal::TERM);
    let said = said(worker);
    assert_eq!(said.code, Some(0), "{said:#?}");
    assert!(!said.err.contains("WARN") && !said.err.contains("error"), "{said:#?}");
}

#[test]
fn a_read_only_server_changes_nothing() {
    let behind = Cli::new();
    behind.ok("push k -q mail");
    let served = Served::start(behind, "--read-only --base-path /jobs");
    assert!(served.url.ends_with("/jobs"));
    assert_eq!(served.front.run("ls").code, Some(0));
    for line in ["push k -q mail", "queue purge mail --yes", "queue pause mail --reason x", "take -q mail"] {
        served.front.run(line).fails(6, "forbidden", "the server is read-only");
    }
    assert_eq!(served.behind.json("stats")["waiting"], 1);
}

#[test]
fn it_listens_to_other_machines_only_with_a_token() {
    let t = Cli::new();
    t.ok("push k");
    t.run("serve --listen 0.0.0.0:0").fails(2, "invalid", "will not listen on 0.0.0.0:0 without a token");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    t.run(&format!("serve --listen {addr}")).fails(5, "store_unavailable", "could not listen");
    t.run("serve --base-path jobs").is_usage("--base-path");
}

#[test]
fn a_signal_ends_it_and_the_waits_of_its_workers() {
    let mut served = Served::start(Cli::new(), "");
    served.front.ok("push k -q mail");
    let mut worker =
        served.front.command("work -q mail --exec true".split(' ').map(str::to_owned)).spawn().unwrap();
    let done = || Some(served.behind.json("stats")).filter(|stats| stats["done"] == 1);
    wait(done, || "the job was never done".to_owned());
    signal(&served.child, rustix::process::Signal::TERM);
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
    // It goes on looking for its server.
    assert!(worker.try_wait().unwrap().is_none());
    worker.kill().unwrap();
    worker.wait().unwrap();
}

/// The server is killed in the middle of an operation, and another process goes on.
#[test]
fn an_operation_goes_on_after_its_server_was_killed() {
    const JOBS: usize = 10_000;
    let mut served = Served::start(Cli::new(), "");
    let lines = "{\"kind\":\"k\",\"queue\":\"mail\",\"delay_ms\":3600000}\n".repeat(JOBS);
    assert_eq!(served.behind.feed("push --batch -", lines).code, Some(0));
    let order = r#"{"action":"cancel","filter":"queue:mail","reason":"wrong list"}"#;
    let ordered: serde_json::Value = serde_json::from_str(&post(&served.url, "operations", order)).unwrap();
    let path = format!("operations/{}", ordered["id"].as_str().unwrap());
    let show = |url: &str| -> serde_json::Value {
        let answer = send(url, "GET", &path, "", "");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let begun = || Some(show(&served.url)).filter(|operation| operation["outcomes"]["done"] != 0);
    wait(begun, || "no step was taken".to_owned());
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let cancelled = served.behind.json("stats")["cancelled"].as_u64().unwrap();
    assert!(
        0 < cancelled && cancelled < JOBS as u64,
        "{cancelled} of {JOBS} jobs were cancelled before the kill"
    );

    let folder = std::mem::replace(&mut served.behind, Cli::new());
    let again = Served::start(folder, "");
    // The lease of the first server lasts for up to 15 s.
    let end = wait(
        || Some(show(&again.url)).filter(|operation| operation["state"] != "running"),
        || format!("it never ended: {}", show(&again.url)),
    );
    assert_eq!(end["state"], "done");
    assert_eq!(again.behind.json("stats")["cancelled"], JOBS);
    let done = end["outcomes"]["done"].as_u64().unwrap();
    assert!((JOBS as u64 - 250..=JOBS as u64).contains(&done), "{end}");
}

/// A certificate of 127.0.0.1 that signs itself, and its key.
pub(crate) fn certificate(t: &Cli) -> [String; 2] {
    let files = ["here.pem", "here.key"].map(|name| t.path(name).display().to_string());
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    command.args(["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]);
    command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    let output = command.args(["-out", &files[0], "-keyout", &files[1]]).output();
    let output = output.expect("this test needs openssl on the path: apt-get install openssl");
    assert!(output.status.success(), "{output:?}");
    files
}

#[test]
fn it_speaks_tls() {
    let t = Cli::new();
    let [cert, key] = certificate(&t);
    std::fs::write(t.path("text"), "no certificate").unwrap();
    let line = format!("serve --tls-cert {} --tls-key {key}", t.path("text").display());
    t.run(&line).fails(2, "invalid", "could not use the file");
    t.run(&format!("serve --tls-cert {cert}")).is_usage("--tls-key");

    let served = Served::start(t, &format!("--tls-cert {cert} --tls-key {key}"));
    assert!(served.url.starts_with("https://"), "{}", served.url);
    let trusting = Cli::with_store(&format!("{}?ca={cert}", served.url));
    trusting.ok("push k -q mail");
    assert_eq!(served.behind.json("stats")["waiting"], 1);
    served.front.run("stats").fails(5, "store_unavailable", "could not connect");
    let plain = Cli::with_store(&served.url.replace("https://", "http://"));
    assert_ne!(plain.run("stats").code, Some(0));
    assert_eq!(trusting.run("stats").code, Some(0), "it goes on");
}

#[test]
fn users_that_a_proxy_names_have_the_role_of_the_proxy() {
    let served = Served::start(Cli::new(), "--proxy 127.0.0.1 --proxy-header X-User --proxy-role operate");
    let as_user = |user: &str, path: &str| {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: jobs\r\n{user}connection: close\r\ncontent-length: 0\r\n\r\n"
        );
        let mut stream = TcpStream::connect(served.url.strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(as_user("", "/api/v1/count"), "401");
    assert_eq!(as_user("x-user: ana\r\n", "/api/v1/count"), "200");
    assert_eq!(as_user("x-user: ana\r\n", "/api/v1/audit"), "200");
    served.front.run("stats").fails(6, "unauthenticated", "the server has no tokens");
    served.behind.run("serve --proxy-role read").is_usage("--proxy");
    served.behind.run("serve --proxy nonsense").fails(2, "invalid", "\"nonsense\" is neither an address");
}

/// Pages hide them from everybody, and the API from those whom a proxy names.
#[test]
fn payloads_are_hidden_if_the_operator_says_so() {
    let get = |served: &Served, path: &str, headers: &str| {
        let answer = send_to(&served.url, "GET", path, headers, "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        answer
    };
    for (options, is_hidden) in [("", false), ("--hide-payloads", true)] {
        let served = Served::start(Cli::new(), options);
        let id = served.front.json("push k \"sesame\" -q mail")["id"].as_str().unwrap().to_owned();
        assert_ne!(get(&served, &format!("/jobs/{id}"), "").contains("sesame"), is_hidden);
        assert!(
            get(&served, &format!("/api/v1/jobs/{id}"), "").contains("sesame"),
            "the API is for programs"
        );

        let proxy = format!("--proxy 127.0.0.1 --proxy-header X-User --proxy-role operate {options}");
        let served = Served::start(Cli::new(), &proxy);
        let id = served.behind.json("push k \"sesame\" -q mail")["id"].as_str().unwrap().to_owned();
        for path in [format!("/jobs/{id}"), format!("/api/v1/jobs/{id}")] {
            assert_ne!(get(&served, &path, "x-user: ana\r\n").contains("sesame"), is_hidden, "{path}");
        }
    }
}

#[test]
fn the_protocol_of_sqs_is_spoken_if_it_is_asked_for() {
    let headers = "content-type: application/x-amz-json-1.0\r\nx-amz-target: AmazonSQS.CreateQueue\r\n";
    let ask = |served: &Served| send_to(&served.url, "POST", "/", headers, r#"{"QueueName":"mail"}"#);
    let served = Served::start(Cli::new(), "--sqs");
    let answer = ask(&served);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with(&format!(r#"{{"QueueUrl":"{}/000000000000/mail"}}"#, served.url)), "{answer}");
    // From the first token on, each request is signed.
    served.token("--role admin");
    wait(
        || ask(&served).starts_with("HTTP/1.1 403").then_some(()),
        || "no signature was asked for".to_owned(),
    );
    let plain = Served::start(Cli::new(), "");
    assert!(!ask(&plain).starts_with("HTTP/1.1 200"), "{}", ask(&plain));
}
