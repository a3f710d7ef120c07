//! `punctual serve --mcp`: what an assistant can read, and that it can do nothing else.

use serde_json::{Value, json};

use crate::{
    exec::signal,
    fixture::{Cli, wait},
    serve::Served,
    server_page::{post as post_call, send_to},
};

/// What each client of the protocol sends.
const HEAD: &str = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";
const SECRET: &str = "hunter2";

/// Sends a message, and returns the status and the body.
fn post(served: &Served, headers: &str, message: &Value) -> (u16, String) {
    let answer = send_to(&served.url, "POST", "/mcp", &format!("{HEAD}{headers}"), &message.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Makes a request of the protocol, and returns its result, or its error.
fn ask(served: &Served, headers: &str, method: &str, params: &Value) -> Result<Value, Value> {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let (status, body) = post(served, headers, &message);
    assert_eq!(status, 200, "{method} {params}: {body}");
    let mut answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["id"], 1, "{body}");
    if answer["error"].is_null() { Ok(answer["result"].take()) } else { Err(answer["error"].take()) }
}

/// Uses a tool. `Err` has what it says was wrong.
fn tool(served: &Served, headers: &str, name: &str, arguments: &Value) -> Result<String, String> {
    let result = ask(served, headers, "tools/call", &json!({"name": name, "arguments": arguments})).unwrap();
    let text = result["content"][0]["text"].as_str().unwrap().to_owned();
    if result["isError"] == true { Err(text) } else { Ok(text) }
}

fn read(served: &Served, headers: &str, name: &str, arguments: &Value) -> Value {
    let text =
        tool(served, headers, name, arguments).unwrap_or_else(|what| panic!("{name} {arguments}: {what}"));
    serde_json::from_str(&text).unwrap()
}

/// A server with a waiting job in `mail` and a dead one in `sms`, and the ids of them.
fn served() -> (Served, String, String) {
    let cli = Cli::new();
    let secret = json!({ "password": SECRET }).to_string();
    let id = |said: Value| said["id"].as_str().unwrap().to_owned();
    let waiting = id(cli.json(&format!("push email.send {secret} -q mail --in 1h")));
    let dead = id(cli.json(&format!("push sms.send {secret} -q sms --max-attempts 1")));
    let mut worker = cli.command("work -q sms --exec false".split(' ')).spawn().unwrap();
    cli.wait_for(&dead, "dead");
    signal(&worker, rustix::process::Signal::TERM);
    assert!(worker.wait().unwrap().success());
    (Served::start(cli, "--mcp"), waiting, dead)
}

#[test]
fn an_assistant_reads_what_the_store_has() {
    let (served, waiting, dead) = served();
    let client = json!({"name": "test", "version": "1"});
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    let hello = ask(&served, "", "initialize", &hello).unwrap();
    assert_eq!(
        (&hello["serverInfo"]["name"], &hello["protocolVersion"]),
        (&json!("punctual"), &json!("2025-06-18"))
    );
    let (status, _) = post(&served, "", &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    assert_eq!(status, 202);
    let listed = ask(&served, "", "tools/list", &json!({})).unwrap();
    let names: Vec<&str> =
        listed["tools"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["stats", "queue", "list", "show", "why", "failures", "upcoming"]);
    for tool in listed["tools"].as_array().unwrap() {
        assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
    }
    let stats = read(&served, "", "stats", &json!({}));
    assert_eq!((&stats["counts"]["waiting"], &stats["counts"]["dead"]), (&json!(1), &json!(1)));
    assert_eq!(read(&served, "", "queue", &json!({"name": "sms"}))["counts"]["dead"], 1);
    let page = read(&served, "", "list", &json!({"filter": "state:dead", "limit": 5}));
    assert_eq!(page["jobs"].as_array().map(Vec::len), Some(1));
    assert_eq!(page["jobs"][0]["id"], dead.as_str());
    assert_eq!(read(&served, "", "show", &json!({"id": dead}))["payload"]["password"], SECRET);
    let why = read(&served, "", "why", &json!({"id": waiting}));
    assert!(why["reasons"][0].as_str().unwrap().starts_with("The job is due "), "{why}");
    let why = read(&served, "", "why", &json!({"id": dead}));
    assert!(why["reasons"][0].as_str().unwrap().starts_with("Its only attempt failed"), "{why}");
    assert_eq!(read(&served, "", "failures", &json!({}))["groups"][0]["kind"], "sms.send");
    let upcoming = read(&served, "", "upcoming", &json!({"bucket_ms": 7_200_000, "buckets": 1}));
    assert_eq!(upcoming["buckets"], json!([1]));
}

#[test]
fn what_is_wrong_is_said_to_the_assistant() {
    let (served, waiting, _) = served();
    let wrong = |name, arguments: Value, what: &str| {
        let said = tool(&served, "", name, &arguments).unwrap_err();
        assert!(said.contains(what), "{name} {arguments}: {said}");
    };
    wrong("show", json!({"id": "01a2118b-8874-7001-800e-7f5eb936f702"}), "there is no job");
    wrong("show", json!({}), "the argument id is missing");
    wrong("why", json!({"id": format!("{waiting}/../../stats")}), "id");
    wrong("list", json!({"filter": "colour:red"}), "colour");
    wrong("list", json!({"limit": 1_000_000_000}), "limit");
    wrong("stats", json!({"queue": "mail"}), "no argument");
    let unknown = ask(&served, "", "tools/call", &json!({"name": "purge", "arguments": {}})).unwrap_err();
    assert_eq!(unknown["message"], "there is no such tool");
    let large = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x".repeat(70_000)}});
    assert_eq!(post(&served, "", &large).0, 413);
    let large = served.store().json(&format!("push k {} -q large", json!("x".repeat(100_000))));
    assert!(
        read(&served, "", "list", &json!({"filter": "queue:large"}))["jobs"][0]["payload"]
            == "… left out: 100002 bytes"
    );
    assert_eq!(read(&served, "", "show", &json!({"id": large["id"]}))["payload"], "… left out: 100002 bytes");
    let half = format!("{{\"kind\":\"k\",\"queue\":\"many\",\"payload\":\"{}\"}}", "x".repeat(900));
    let many = post_call(&served.url, "enqueue", &format!("{{\"jobs\":[{}]}}", vec![half; 300].join(",")));
    assert!(many.contains("inserted"), "{many}");
    wrong("list", json!({"filter": "queue:many", "limit": 300}), "ask for fewer jobs");
    assert_eq!(
        read(&served, "", "queue", &json!({"name": "mail"}))["counts"]["waiting"],
        1,
        "it still answers"
    );
}

#[test]
fn tools_keep_to_the_token_and_change_nothing() {
    let (served, waiting, dead) = served();
    let bearer = |options: &str| format!("authorization: Bearer {}\r\n", served.token(options));
    let all = bearer("--role admin");
    let (mail, blind) = (bearer("--role read --queue mail"), bearer("--role read --hide-payloads"));
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    // The server believes for up to a second that there are no tokens.
    wait(
        || Some(()).filter(|()| post(&served, "", &hello).0 == 401),
        || "it never asked for a token".to_owned(),
    );
    let before = served.behind("ls -o ndjson");
    assert_eq!(read(&served, &mail, "show", &json!({"id": waiting}))["id"], waiting.as_str());
    for (name, arguments, what) in [
        ("show", json!({"id": dead}), "there is no job"),
        ("why", json!({"id": dead}), "there is no job"),
        ("queue", json!({"name": "sms"}), "the token is not for the queue \"sms\""),
        ("stats", json!({}), "the whole store"),
        ("failures", json!({}), "the whole store"),
        ("upcoming", json!({}), "the whole store"),
        ("list", json!({"filter": "queue:mail"}), "the whole store"),
    ] {
        let said = tool(&served, &mail, name, &arguments).unwrap_err();
        assert!(said.contains(what), "{name}: {said}");
    }
    for (name, arguments) in
        [("show", json!({"id": waiting})), ("list", json!({})), ("why", json!({"id": dead}))]
    {
        let text = tool(&served, &blind, name, &arguments).unwrap();
        assert!(!text.contains(SECRET), "{name}: {text}");
    }
    for name in ["act", "push", "enqueue", "jobs", "delete", "../queues/mail/purge"] {
        ask(&served, &all, "tools/call", &json!({"name": name, "arguments": {"id": waiting}})).unwrap_err();
    }
    // A client asks whether there is a stream, and ends a session that it does not have.
    for (method, token) in [("GET", &all), ("GET", &mail), ("DELETE", &mail)] {
        assert_eq!(
            send_to(&served.url, method, "/mcp", token, "").split(' ').nth(1),
            Some("405"),
            "{method}"
        );
    }
    assert_eq!(served.behind("ls -o ndjson"), before);
}

#[test]
fn a_page_of_another_site_cannot_use_the_tools() {
    let (served, ..) = served();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(post(&served, "origin: http://evil.example\r\n", &hello).0, 403);
    assert_eq!(post(&served, "sec-fetch-site: cross-site\r\n", &hello).0, 403);
    assert_eq!(post(&served, "host: evil.example\r\n", &hello).0, 421);
    assert_eq!(post(&served, "", &hello).0, 200);
}

#[test]
fn without_the_option_there_are_no_tools() {
    let served = Served::start(Cli::new(), "");
    let (status, body) = post(&served, "", &json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
    assert!(status == 404 && body.contains("start it with --mcp"), "{status} {body}");
}
