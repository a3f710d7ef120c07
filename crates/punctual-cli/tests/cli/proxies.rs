//! A real nginx and a real Caddy before a server, set up as the page about the server says.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use crate::{
    fixture::{Cli, wait},
    serve::{Served, certificate},
};

/// More than an nginx takes without being told to.
const LARGE: usize = 900_000;

/// A process that is killed at the end of its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The example of the page in this language, with what is replaced in it. Each text that is replaced is there once.
fn example(language: &str, replaced: &[(&str, &str)]) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/server.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    let text = rest.split("```").next().unwrap().to_owned();
    replaced.iter().fold(text, |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from} in {text}");
        text.replace(from, to)
    })
}

/// A proxy on a port of its own.
struct Proxy {
    addr: String,
    cert: String,
    _running: Running,
}

impl Proxy {
    /// `None` where the program is missing, which fails in CI.
    fn start(
        t: &Cli,
        program: &str,
        config: impl FnOnce(&str, &[String; 2]) -> String,
        args: &[&str],
    ) -> Option<Self> {
        if Command::new(program).arg("-h").output().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            eprintln!("MISSING: there is no {program}, so nothing went through a real one");
            assert!(env::var_os("CI").is_none(), "CI needs {program}");
            return None;
        }
        let files = certificate(t);
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        fs::write(t.path("proxy.conf"), config(&addr, &files)).unwrap();
        let mut command = Command::new(program);
        command.args(args).arg(t.path("proxy.conf")).current_dir(t.path(""));
        command
            .env("HOME", t.path(""))
            .stdout(Stdio::null())
            .stderr(fs::File::create(t.path("proxy.log")).unwrap());
        let child = command.spawn().unwrap();
        let [cert, _] = files;
        let proxy = Self { addr, cert, _running: Running(child) };
        let log = || fs::read_to_string(t.path("proxy.log")).unwrap();
        wait(|| TcpStream::connect(&proxy.addr).ok(), || format!("{program} does not listen: {}", log()));
        Some(proxy)
    }

    /// A connection over TLS.
    fn connect(&self) -> Running {
        let mut command = Command::new("openssl");
        command.args([
            "s_client",
            "-quiet",
            "-verify_return_error",
            "-CAfile",
            &self.cert,
            "-connect",
            &self.addr,
        ]);
        Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn begin(&self, head: &str, headers: &str, body: &str) -> Running {
        let mut connection = self.connect();
        let (addr, length) = (&self.addr, body.len());
        let request = format!(
            "{head} HTTP/1.1\r\nhost: {addr}\r\naccept: text/html\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        connection.0.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        connection
    }

    /// Sends a request, and returns the answer with its head, in lower case.
    fn send(&self, head: &str, headers: &str, body: &str) -> String {
        let mut connection = self.begin(head, &format!("connection: close\r\n{headers}"), body);
        let mut answer = Vec::new();
        connection.0.stdout.as_mut().unwrap().read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap().to_lowercase()
    }
}

/// A person logs in, acts, and sees a change; a worker waits and works; large bodies pass.
fn pages_and_workers_go_through(served: &Served, proxy: &Proxy, token: &str) {
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let origin = format!("origin: https://{}\r\n", proxy.addr);
    let first = proxy.send("GET /jobs", "", "");
    assert!(first.starts_with("http/1.1 303") && first.contains("\nlocation: /jobs/login\r\n"), "{first}");
    let login = proxy.send("POST /jobs/login", &format!("{form}{origin}"), &format!("token={token}"));
    let cookie =
        login.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{login}"));
    assert!(
        cookie.starts_with("__host-punctual_session") && cookie.ends_with("; path=/; secure"),
        "{cookie}"
    );
    // Answers are read in lower case, and this prefix is not.
    let cookie = cookie.split(';').next().unwrap().replace("__host-", "__Host-");
    let cookie = format!("cookie: {cookie}\r\n");
    let page = proxy.send("GET /jobs", &cookie, "");
    assert!(page.starts_with("http/1.1 200") && page.contains("href=\"/jobs/queues\""), "{page}");

    let mut events = proxy.begin("GET /jobs/events", &cookie, "");
    let mut events = BufReader::new(events.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(events.any(|line| line.starts_with("data:")), "what is there at first");
    served.behind("push k -q other --in 1h");
    assert!(events.any(|line| line.starts_with("data:")), "the change");

    let (pause, other) = ("POST /jobs/queues/other/pause", "origin: https://elsewhere.example\r\n");
    let refused = proxy.send(pause, &format!("{form}{cookie}{other}"), "reason=x");
    assert!(refused.starts_with("http/1.1 403"), "{refused}");
    let paused = proxy.send(pause, &format!("{form}{cookie}{origin}"), "reason=x");
    assert!(
        paused.starts_with("http/1.1 303") && paused.contains("\nlocation: /jobs/queues/other"),
        "{paused}"
    );

    let file = served.store().path("token");
    fs::write(&file, token).unwrap();
    let url = format!("https://{}/jobs?token_file={}&ca={}", proxy.addr, file.display(), proxy.cert);
    let front = Cli::with_store(&url);
    let payload = "1".repeat(LARGE);
    let jobs = format!("{{\"kind\":\"k\",\"queue\":\"mail\",\"payload\":\"{payload}\"}}\n").repeat(5);
    front.feed("push --batch -", jobs).ok();
    let late = front.json("push k -q mail --in 2s");
    let mut worker = front.command(["work", "-q", "mail", "--exec", "true"]);
    let _worker = Running(worker.stderr(Stdio::null()).spawn().unwrap());
    front.wait_for(late["id"].as_str().unwrap(), "done");
    assert_eq!(front.json("stats")["done"], 6);
}

/// A server under a path, and a token for everything in it.
fn served() -> (Served, String) {
    let served = Served::start(Cli::new(), "--base-path /jobs");
    let token = served.token("--role admin");
    (served, token)
}

#[test]
fn nginx_is_set_up_as_the_page_says() {
    let (served, token) = served();
    let target = served.url.strip_suffix("/jobs").unwrap().to_owned();
    let config = |addr: &str, [cert, key]: &[String; 2]| {
        let server = example(
            "nginx",
            &[
                ("listen 443 ssl", &format!("listen {addr} ssl")),
                ("/etc/ssl/example.com.pem", cert),
                ("/etc/ssl/example.com.key", key),
                ("http://127.0.0.1:7890", &target),
            ],
        );
        // Its worker reads and writes below a folder that is ours alone.
        let folders: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};\n"))
            .concat();
        // One process: a killed master would leave its worker behind.
        format!(
            "master_process off;\ndaemon off;\npid pid;\nevents {{}}\nhttp {{\naccess_log off;\n{folders}{server}}}\n"
        )
    };
    let prefix = served.store().path("").display().to_string();
    let args = ["-e", "stderr", "-p", &prefix, "-c"];
    let Some(proxy) = Proxy::start(served.store(), "nginx", config, &args) else { return };
    pages_and_workers_go_through(&served, &proxy, &token);
}

#[test]
fn caddy_is_set_up_as_the_page_says() {
    let (served, token) = served();
    let target = served.url.strip_suffix("/jobs").unwrap().strip_prefix("http://").unwrap().to_owned();
    let config = |addr: &str, [cert, key]: &[String; 2]| {
        let site = format!("https://{addr} {{\n    tls {cert} {key}\n");
        let site = example("caddy", &[("example.com {\n", &site), ("127.0.0.1:7890", &target)]);
        format!("{{\n    admin off\n    auto_https disable_redirects\n}}\n{site}")
    };
    let args = ["run", "--adapter", "caddyfile", "--config"];
    let Some(proxy) = Proxy::start(served.store(), "caddy", config, &args) else { return };
    pages_and_workers_go_through(&served, &proxy, &token);
}
