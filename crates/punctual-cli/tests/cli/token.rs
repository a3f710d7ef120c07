//! `token new|ls|revoke`, and the commands of its page.

use std::{
    fs,
    process::{Command, Stdio},
};

use crate::fixture::{Cli, said};

/// The id and the secret of a token.
fn parts(token: &str) -> (&str, &str) {
    let parts =
        token.strip_suffix('\n').unwrap_or(token).strip_prefix("pt_").and_then(|it| it.split_once('_'));
    let (id, secret) = parts.unwrap_or_else(|| panic!("{token:?} is no token"));
    assert_eq!((id.len(), secret.len()), (8, 64), "{token:?}");
    (id, secret)
}

#[test]
fn a_token_is_printed_once_and_the_store_never_has_it() {
    let t = Cli::new();
    let said = t.run("token new ana --role admin");
    assert_eq!(said.out.lines().count(), 1, "{said:#?}");
    let (id, secret) = parts(&said.out);
    assert!(
        said.err.starts_with(&format!("made token {id}  ana  role admin  all queues  never expires\n")),
        "{said:#?}"
    );
    assert!(!said.err.contains(secret), "{said:#?}");
    for line in ["token ls", "token ls -o wide", "token ls --json", "token ls -o ndjson", "token ls -o ids"] {
        let list = t.run(line);
        assert!(list.out.contains(id) && !format!("{list:?}").contains(secret), "{line}: {list:#?}");
    }
    for entry in fs::read_dir(t.path("")).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        let bytes = fs::read(entry.path()).unwrap();
        let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!has(&secret[..16]), "{} has the secret", entry.path().display());
    }
    let other = t.ok("token new ana --role admin --quiet");
    assert_ne!(parts(&other).1, secret);
}

#[test]
fn a_token_is_listed_with_all_that_it_may() {
    let t = Cli::new();
    let line = ["token", "new", "on call", "--role", "operate", "-q", "mail", "--queue", "sms"];
    let more = ["--hide-payloads", "--expires-in", "90d", "--json"];
    let made: serde_json::Value = serde_json::from_str(&t.args(&[&line[..], &more].concat()).ok()).unwrap();
    let token = made["token"].as_str().unwrap();
    let (id, _) = parts(token);
    let created = made["created_at_ms"].as_u64().unwrap();
    let mut expected = serde_json::json!({
        "id": id, "name": "on call", "role": "operate", "queues": ["mail", "sms"], "payloads": "hidden",
        "created_at_ms": created, "created_by": "ana", "expires_at_ms": created + 90 * 86_400_000,
        "sqs": false,
    });
    assert_eq!(t.json("token ls"), serde_json::json!([expected]));
    expected["token"] = token.into();
    assert_eq!(made, expected);
    let table = t.ok("token ls");
    let lines: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(lines[0], ["ID", "NAME", "ROLE", "QUEUES", "PAYLOADS", "CREATED", "BY", "EXPIRES"]);
    assert_eq!(lines[1][..7], [id, "on", "call", "operate", "mail", "sms", "hidden"]);
    assert!(table.contains("  ana  in 89d") || table.contains("  ana  in 90d"), "{table}");
    // Without options: the whole store, and no end.
    let made = t.json("token new bo --role read --by cy");
    assert_eq!(
        (&made["queues"], &made["expires_at_ms"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!((&made["payloads"], &made["created_by"]), (&"shown".into(), &"cy".into()));
}

#[test]
fn an_access_key_is_printed_as_two_variables() {
    let t = Cli::new();
    let said = t.run("token new app --role operate --sqs");
    let lines: Vec<_> = said.out.lines().map(|line| line.split_once('=').unwrap()).collect();
    let [("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret)] = lines[..] else {
        panic!("{said:#?}");
    };
    assert_eq!((id.len(), secret.len()), (8, 64), "{said:#?}");
    assert!(said.err.contains("access key") && !said.err.contains(secret), "{said:#?}");
    assert_eq!(t.json("token ls")[0]["sqs"], true);
    assert!(!t.ok("token ls --json").contains(secret));
    // With the token that it belongs to, which is as good a token as any other.
    let made = t.json("token new app --role operate --sqs");
    let (id, of_token) = parts(made["token"].as_str().unwrap());
    assert_eq!(made["id"], id);
    let secret = made["secret_access_key"].as_str().unwrap();
    assert!(secret.len() == 64 && secret != of_token, "{made}");
    assert_eq!(t.json("token new bo --role read")["secret_access_key"], serde_json::Value::Null);
}

#[test]
fn a_revoked_token_is_gone() {
    let t = Cli::new();
    let (first, second) = (t.ok("token new ana --role admin"), t.ok("token new bo --role read"));
    let (first, second) = (parts(&first).0, parts(&second).0);
    let revoked = t.run(&format!("token revoke {first}"));
    assert_eq!((revoked.out.as_str(), revoked.err.as_str()), (format!("revoked {first}\n").as_str(), ""));
    assert_eq!(t.ok("token ls -o ids"), format!("{second}\n"));
    t.run(&format!("token revoke {first}")).fails(3, "not_found", &format!("there is no token {first}"));
    let revoked = t.run(&format!("token revoke {second} --json"));
    assert_eq!(revoked.lines(), [serde_json::json!({"id": second, "revoked": true})]);
    assert!(revoked.err.starts_with("this was the last token"), "{revoked:#?}");
    assert_eq!(t.json("token ls"), serde_json::json!([]));
}

#[test]
fn mistakes_are_reported() {
    let t = Cli::new();
    // Only what makes a token makes a store.
    t.run("token ls").fails(5, "store_unavailable", "");
    let token = t.ok("token new ana --role admin");
    t.run(&format!("token revoke {token}")).fails(
        2,
        "invalid",
        "token revoke takes the id of a token, not the token",
    );
    assert!(!t.run(&format!("token revoke {token}")).err.contains(parts(&token).1));
    t.run("token revoke ana").fails(2, "invalid", "the id of a token has 8 characters");
    t.run("token new bo --role root").is_usage("write read, operate or admin");
    t.run("token new bo").is_usage("--role <ROLE>");
    t.run("token new bo --role read -o ids").fails(2, "invalid", "token new does not print ids");
    t.run("token new bo --role read --expires-in 0s").fails(2, "invalid", "a token that expires at once");
    t.args(&["token", "new", "", "--role", "read"]).fails(2, "invalid", "name of the token is empty");
    assert_eq!(t.json("token ls").as_array().unwrap().len(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn a_token_that_nobody_got_is_revoked() {
    let t = Cli::new();
    t.ok("token new ana --role admin");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let child =
        t.command(["token", "new", "bo", "--role", "read"]).stdout(Stdio::from(full)).spawn().unwrap();
    let failed = said(child);
    failed.fails(1, "failed", "the token could not be printed, so it was revoked");
    assert!(failed.err.contains("No space left on device"), "{failed:#?}");
    let left = t.json("token ls");
    assert_eq!((left.as_array().unwrap().len(), &left[0]["name"]), (1, &"ana".into()));
}

/// Each line of the page that is a command runs. The id is that of a token that was made.
#[cfg(unix)]
#[test]
fn every_command_of_the_page_runs() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/tokens.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
    assert_eq!(lines.len(), 7, "{lines:?}");
    let t = Cli::new();
    let mut last = String::new();
    for line in lines {
        let binary = env!("CARGO_BIN_EXE_punctual");
        let words = line.strip_prefix("punctual ").unwrap().replace("0f3c9a71", &last);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("'{binary}' {words}")]).current_dir(t.path(""));
        command.env_remove("PUNCTUAL_STORE").stdout(Stdio::piped()).stderr(Stdio::piped());
        let out = said(command.spawn().unwrap()).ok();
        if line.contains("> ana.token") {
            assert_eq!(out, "");
            last = parts(&fs::read_to_string(t.path("ana.token")).unwrap()).0.to_owned();
        }
    }
    assert_eq!(t.json("token ls").as_array().unwrap().len(), 3);
}
