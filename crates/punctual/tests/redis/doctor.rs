//! What the doctor says.

use punctual::store::{Check, CheckLevel, Store};

use crate::{open, server::Server};

/// The doctor tells what stands well and what does not, and leaves no key behind.
#[tokio::test]
async fn the_doctor_tells_how_it_stands_with_the_server() {
    let server = Server::start(&["--user", "ana", "on", ">secret", "~*", "+@all", "-info", "-hincrby"]);
    // How soon a notification arrives is the machine's as well.
    let names = |checks: &[Check], level| -> Vec<String> {
        let found = checks.iter().filter(|check| check.level == level).map(|check| check.name.to_string());
        found.filter(|name| level != CheckLevel::Warn || name != "bell").collect()
    };
    let checks = open(&server.url()).await.doctor().await.unwrap();
    assert_eq!(names(&checks, CheckLevel::Fail), [""; 0], "{checks:#?}");
    assert_eq!(names(&checks, CheckLevel::Warn), ["persistence"], "{checks:#?}");
    for (name, words) in [
        ("version", server.program()),
        ("role", "primary"),
        ("eviction", "noeviction"),
        ("memory", "MiB in use"),
        ("durability", "fast"),
        ("keys", "no other program"),
        ("rights", "user default may do all"),
        ("clock", "differ by "),
        ("bell", "arrived after "),
    ] {
        let check = checks.iter().find(|check| check.name == name).expect(name);
        assert!(check.text.contains(words), "{check:?}");
    }

    let url = server.url() + "&user=ana&pass=secret";
    let checks = open(&url).await.doctor().await.unwrap();
    assert_eq!(names(&checks, CheckLevel::Warn), ["info"], "{checks:#?}");
    assert_eq!(names(&checks, CheckLevel::Fail), ["rights"], "{checks:#?}");
    assert!(!format!("{checks:?}").contains("secret"));

    let mut other = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut other).unwrap();
    assert_eq!(keys, [""; 0]);

    let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query(&mut other).unwrap();
    let checks = open(&server.url()).await.doctor().await.unwrap();
    assert!(names(&checks, CheckLevel::Fail).iter().any(|name| name == "role"), "{checks:#?}");
}

/// A log of writes is enough where the server does not begin with a part of a call.
#[tokio::test]
async fn the_doctor_tells_what_a_log_is_worth() {
    let server = Server::start(&["--appendonly", "yes"]);
    let url = server.url();
    for (value, level) in [("yes", CheckLevel::Warn), ("no", CheckLevel::Ok)] {
        server.say(&["CONFIG", "SET", "aof-load-truncated", value]);
        let checks = open(&url).await.doctor().await.unwrap();
        let check = checks.iter().find(|check| check.name == "persistence").unwrap();
        assert!(check.text.contains("appendonly yes, appendfsync everysec"), "{check:?}");
        let tells = check.text.contains("aof-load-truncated yes") && check.fix.is_some();
        assert_eq!((check.level, tells), (level, level == CheckLevel::Warn), "{check:?}");
    }
}
