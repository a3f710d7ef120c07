//! `topic ls|show|subscribe|unsubscribe|publish|rm`.

use crate::fixture::Cli;

/// A store with a topic that two queues are subscribed to.
fn orders() -> Cli {
    let t = Cli::new();
    assert_eq!(
        t.ok("topic subscribe orders invoices parcels"),
        "subscribed invoices  topic orders\nsubscribed parcels  topic orders\n"
    );
    t
}

#[test]
fn topics_are_subscribed_to_and_shown() {
    let t = orders();
    assert_eq!(t.ok("topic subscribe orders parcels"), "already subscribed parcels  topic orders\n");
    assert_eq!(t.ok("topic show orders"), "orders\n  subscribed invoices  parcels\n  waiting    nothing\n");
    assert_eq!(
        t.json("topic show orders"),
        serde_json::json!({"topic": "orders", "queues": ["invoices", "parcels"], "waiting": [], "complete": true})
    );
    assert_eq!(t.ok("topic ls -o ids"), "orders\n");
    let lines: Vec<String> = t.ok("topic ls").lines().map(str::to_owned).collect();
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["TOPIC", "SUBSCRIBED", "QUEUES"]);
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["orders", "2", "invoices", "parcels"]);
    assert_eq!(t.ok("topic unsubscribe orders invoices"), "unsubscribed invoices  topic orders\n");
    assert_eq!(
        t.json("topic unsubscribe orders invoices"),
        serde_json::json!({"topic": "orders", "queue": "invoices", "status": "unchanged"})
    );
    assert_eq!(t.ok("topic rm orders"), "removed orders\n");
    assert_eq!(t.ok("topic ls --json"), "[]\n");
}

#[test]
fn what_is_published_waits_for_its_time() {
    let t = orders();
    let said = t.ok(r#"topic publish orders order.paid {"order":7} --in 1h --max-attempts 3 -p high"#);
    assert!(said.starts_with("scheduled ") && said.contains("  order.paid  topic orders  due "), "{said}");
    let publication = &t.json("ls queue:$topics")["jobs"][0];
    assert_eq!((&publication["status"], &publication["priority"]), (&"scheduled".into(), &"high".into()));
    let shown = t.ok("topic show orders");
    assert!(shown.contains("  waiting    order.paid  ") && shown.contains(" (in "), "{shown}");
    let waiting = &t.json("topic show orders")["waiting"][0];
    assert_eq!(waiting["id"], publication["id"]);
    // By the ordinary verbs.
    let id = publication["id"].as_str().unwrap();
    assert!(t.ok(&format!("why {id}")).contains("due"));
    t.ok(&format!("reschedule {id} --at +2h"));
    t.ok(&format!("cancel {id}"));
    assert_eq!(t.json(&format!("show {id}"))["status"], "cancelled");
    assert_eq!(t.json("queue show $topics")["counts"]["cancelled"], 1);
    assert!(t.ok("topic show orders").ends_with("  waiting    nothing\n"));
}

#[test]
fn a_publication_is_made_once_for_its_key() {
    let t = orders();
    let first = t.json("topic publish orders order.paid --idempotency-key 7");
    assert_eq!((&first["status"], &first["subscribed"]), (&"inserted".into(), &2.into()));
    let again = t.json("topic publish orders order.paid --idempotency-key 7");
    assert_eq!((&again["status"], &again["id"]), (&"duplicate".into(), &first["id"]));
    let said = t.run("topic publish news order.paid --idempotency-key 7");
    assert_eq!(said.err, "warning: no queue is subscribed to news yet\n");
    assert!(said.ok().starts_with("published "));
}

#[test]
fn mistakes_are_told() {
    let t = orders();
    for (args, code, says) in [
        (&["topic", "show", "nope"][..], 3, "there is no topic \"nope\""),
        (&["topic", "rm", "nope"], 3, "there is no topic"),
        (&["topic", "unsubscribe", "nope", "q"], 3, "there is no topic"),
        (&["topic", "subscribe", "orders", "$topics"], 2, "queue \"$topics\" is reserved"),
        (&["topic", "subscribe", "orders"], 2, "<QUEUES>"),
        (&["topic", "subscribe", "", "q"], 2, "topic is empty"),
        (&["topic", "publish", "orders", "k", "{"], 2, "JSON"),
        (&["topic", "publish", "orders", "k", "--header", "topic=x"], 2, "no header topic of its own"),
        (&["topic", "publish", "orders", "k", "-q", "mail"], 2, "topic publish does not take --queue"),
        (&["push", "k", "-q", "$topics"], 2, "publish to a topic instead"),
        (&["work", "-q", "$topics", "--exec", "true"], 2, "reserved"),
        (&["queue", "pause", "$other", "--reason", "x"], 2, "reserved"),
    ] {
        let said = t.args(args);
        assert_eq!(said.code, Some(code), "{args:?}: {}", said.err);
        assert!(said.err.contains(says), "{args:?}: {}", said.err);
    }
    let empty = Cli::new();
    assert_eq!(empty.run("topic ls").code, Some(5));
}

/// A worker of a queue hands out what is published to others, too.
#[cfg(unix)]
#[test]
fn workers_hand_publications_out() {
    let t = orders();
    let mut worker =
        t.command(["work", "-q", "invoices", "--exec", "(cat; echo) > \"$PUNCTUAL_QUEUE\""]).spawn().unwrap();
    t.args(&["topic", "publish", "orders", "order.paid", "{\"order\":7}"]).ok();
    assert_eq!(t.wait_for_file("invoices"), "{\"order\":7}\n");
    crate::fixture::wait(
        || (t.json("ls queue:parcels")["jobs"].as_array().unwrap().len() == 1).then_some(()),
        || "parcels got no job".to_owned(),
    );
    rustix::process::kill_process(rustix::process::Pid::from_child(&worker), rustix::process::Signal::TERM)
        .unwrap();
    assert!(worker.wait().unwrap().success());
}
