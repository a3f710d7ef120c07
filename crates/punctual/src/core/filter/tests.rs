use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::core::{
    backoff::Backoff,
    id::IdMaker,
    job::{Failure, Payload, Running, Unique},
    limits::{FILTER_BYTES_MAX, FILTER_STARS_MAX, FILTER_TERMS_MAX, LIST_STEPS_MAX, PAYLOAD_BYTES_MAX},
    notes::Notes,
};

const HOUR: u64 = 3_600_000;
const NOW: Timestamp = Timestamp::saturating_from_ms(1_795_192_330_000);

fn record() -> JobRecord {
    JobRecord {
        id: IdMaker::default().make(NOW.as_ms() - HOUR, 0, 0x0b3d_5c1e_9f04),
        kind: "email.send".into(),
        queue: "mail".into(),
        payload: Payload::json(
            r#"{"user":{"id":12345678901234567890123,"na\u006de":"ana"},"to":["a b","c"]}"#,
        ),
        priority: Priority::High,
        run_at: NOW.after(Duration::from_mins(5)),
        created_at: Timestamp::saturating_from_ms(NOW.as_ms() - HOUR),
        max_attempts: 8,
        backoff: Backoff::default(),
        timeout: Duration::from_secs(30),
        lease: None,
        group: Some("acme".into()),
        concurrency: None,
        unique: Some(Unique::key("welcome:42")),
        expires_at: None,
        tags: vec!["vip".into(), "on,boarding".into()],
        headers: BTreeMap::new(),
        state: State::Waiting,
        attempt: 4,
        expired_leases: 0,
        snoozes: 0,
        version: 1,
        cancel_requested: false,
        started_at: None,
        finished_at: None,
        reason: None,
        failures: vec![Failure {
            attempt: 3,
            started_ms: NOW.as_ms() - 3 * HOUR,
            ended_ms: NOW.as_ms() - 2 * HOUR,
            worker: "web-1/4711".into(),
            error: "smtp 421 try later".into(),
        }],
        notes: Notes::default(),
        result: None,
        running: None,
        blocked: false,
    }
}

fn matches(text: &str) -> bool {
    Filter::parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).matches(&record(), NOW)
}

#[test]
fn every_field_finds_its_job() {
    let id = record().id;
    for text in [
        "",
        "  ",
        "state:retrying",
        "state:waiting",
        "state:dead,retrying",
        "queue:mail",
        "queue:ma*",
        "kind:email.*",
        "kind:*.send",
        "tag:vip",
        "tag:\"on,boarding\"",
        "group:acme",
        "unique:welcome:42",
        "worker:web-1*",
        "priority:high",
        "priority:0",
        "attempt:4",
        "attempt:>3",
        "attempt:<=4",
        "attempt:1,4",
        "due:<10m",
        "due:>4m59s",
        "created:>59m",
        "created:<61m",
        "failed:>1h30m",
        "error:421",
        "error:\"421 try\"",
        "payload.user.id:12345678901234567890123",
        "payload.user.name:a*",
        "payload.to.0:\"a b\"",
        "-payload.to.7:*",
        "-state:done -queue:bulk",
        "-finished:>1s",
        &format!("id:{id}"),
        &format!("id:{}", &id.to_string()[..8].to_uppercase()),
        "id:5c1e9f04",
        r#"state:retrying queue:mail kind:email.* tag:vip attempt:>3 due:<10m failed:>90m error:"421" group:acme"#,
    ] {
        assert!(matches(text), "{text}");
        if !text.trim().is_empty() && text.split_whitespace().count() == 1 && !text.starts_with('-') {
            assert!(!matches(&format!("-{text}")), "-{text}");
        }
    }
}

#[test]
fn other_jobs_are_left_out() {
    for text in [
        "state:scheduled",
        "state:ready",
        "state:done,dead",
        "queue:mai",
        "queue:\"ma*\"",
        "kind:send",
        "tag:boarding",
        "group:ac",
        "worker:web-2*",
        "priority:low",
        "attempt:>4",
        "due:>10m",
        "due:<-1s",
        "created:>2h",
        "failed:<1h",
        "finished:>0s",
        "error:422",
        "payload.user:ana",
        "payload.user.id:12345678901234567890124",
        "payload.user.name.x:ana",
        "id:123456",
        "queue:mail -tag:vip",
    ] {
        assert!(!matches(text), "{text}");
    }
}

#[test]
fn only_waiting_jobs_are_due() {
    let done = JobRecord { state: State::Done, ..record() };
    assert!(!Filter::parse("due:<10m").unwrap().matches(&done, NOW));
    assert_eq!(Filter::parse("due:<10m").unwrap().states(), Some(vec![State::Waiting]));
}

#[test]
fn a_payload_that_is_no_json_matches_nothing() {
    let bytes = JobRecord { payload: Payload::json([0xff, 0x00]), ..record() };
    assert!(!Filter::parse("payload.to:*").unwrap().matches(&bytes, NOW));
}

#[test]
fn mistakes_are_named_with_what_to_write() {
    for (text, message, hint) in [
        ("kimd:x", "unknown field `kimd` in filter", "did you mean `kind`?"),
        ("state:retryin", "\"retryin\" is not a state", "did you mean `retrying`?"),
        ("mail", "\"mail\" is not a term of a filter", "write field:value, as in queue:mail state:dead"),
        ("due:10m", "due:10m is not a comparison with a time", "write due:<10m"),
        ("failed:<-1h", "failed:<-1h is not a comparison", "write failed:>2h"),
        ("attempt:x", "\"x\" is not the number of an attempt", "write attempt:3"),
        ("queue:>a", "queue does not take > or <", "if the value begins with > or <"),
        ("queue: mail", "a value is missing after queue:", "write field:value without a space"),
        ("queue:a,", "a value is missing after queue:", "write field:value"),
        ("id:12345", "\"12345\" is not a job id or a part of one", "write the id"),
        ("payload.:x", "\"payload.\" is not a path into a payload", "write payload.user.id:42"),
        ("priority:5", "\"5\" is not a priority", "write high"),
    ] {
        let wrong = Filter::parse(text).unwrap_err();
        assert!(wrong.to_string().starts_with(message), "{text}: {wrong}");
        assert!(wrong.hint().is_some_and(|h| h.starts_with(hint)), "{text}: {:?}", wrong.hint());
    }
    assert!(Filter::parse("error:\"421").unwrap_err().to_string().contains("is not closed"));
}

#[test]
fn a_filter_is_bounded() {
    assert!(Filter::parse(&"x".repeat(FILTER_BYTES_MAX + 1)).is_err());
    assert!(Filter::parse(&"queue:a ".repeat(FILTER_TERMS_MAX)).is_ok());
    assert!(Filter::parse(&"queue:a ".repeat(FILTER_TERMS_MAX + 1)).is_err());
    assert!(Filter::parse(&format!("payload{}:1", ".a".repeat(17))).is_err());
    let stars = |n| Filter::parse(&format!("kind:{} unique:a*", vec!["*"; n].join(",")));
    assert!(stars(FILTER_STARS_MAX - 1).is_ok());
    assert_eq!(
        stars(FILTER_STARS_MAX).unwrap_err().to_string(),
        "a filter may have 64 values with * at most"
    );
}

/// Compares a job once, and returns the steps.
fn steps(filter: &str, job: &JobRecord) -> u64 {
    let mut search = Search::new(&Filter::parse(filter).unwrap());
    search.matches(job, NOW);
    search.steps()
}

#[test]
fn a_payload_is_read_once_for_all_terms() {
    let inner: Vec<String> = (0..70_000).map(|n| format!("\"k{n}\":1")).collect();
    let json = format!("{}{{{}}}{}", r#"{"a":"#.repeat(15), inner.join(","), "}".repeat(15));
    let bytes = json.len() as u64;
    let job = JobRecord { payload: Payload::json(json), ..record() };
    let term = format!("-payload.{}k1:2", "a.".repeat(15));
    let filter = vec![term; 62].join(" ");
    assert!(Filter::parse(&filter).unwrap().matches(&job, NOW));
    // Checked once and walked through once.
    assert!(steps(&filter, &job) < 2 * bytes + 1_000, "{} steps for {bytes} bytes", steps(&filter, &job));
}

#[test]
fn a_payload_is_not_read_if_another_term_decides() {
    let job = JobRecord { payload: Payload::json("1".repeat(100_000)), ..record() };
    assert!(steps("-payload.a:* payload.b:1 kind:other", &job) < 100);
}

/// A page ends after the job that brings it to its bound, so one job must not be much dearer.
#[test]
fn no_filter_makes_one_job_dear() {
    let text = "a".repeat(PAYLOAD_BYTES_MAX - 10);
    let error = Failure { error: "a".repeat(1_024), worker: "a".repeat(255), ..record().failures[0].clone() };
    let job = JobRecord {
        payload: Payload::json(format!("{{\"a\":\"{text}\"}}")),
        tags: vec!["a".repeat(255); 16],
        failures: vec![error; 8],
        ..record()
    };
    let long = "a".repeat(3_000);
    for filter in [
        format!("payload.a:{}", vec!["*b*"; FILTER_STARS_MAX].join(",")),
        format!("payload.a:*b{}*", "*a".repeat(1_500)),
        format!("payload.a:*{long}b*"),
        format!("tag:{}", vec!["*b*"; FILTER_STARS_MAX].join(",")),
        format!("worker:{}", vec!["b"; 2_000].join(",")),
        format!("error:{}", vec!["b"; 2_000].join(",")),
        format!("attempt:{}", vec!["9"; 2_000].join(",")),
        vec!["-payload.a:b"; FILTER_TERMS_MAX].join(" "),
    ] {
        let n = steps(&filter, &job);
        assert!(n <= 3 * LIST_STEPS_MAX, "{n} steps for {filter:.40}");
    }
}

#[test]
fn narrowing_names_what_all_terms_agree_on() {
    let states = |text| Filter::parse(text).unwrap().states();
    let queues = |text| Filter::parse(text).unwrap().queues();
    assert_eq!(states("state:dead,retrying"), Some(vec![State::Dead, State::Waiting]));
    assert_eq!(states("state:dead,done state:done"), Some(vec![State::Done]));
    assert_eq!(states("-state:dead"), None);
    assert_eq!(queues("queue:a,b"), Some(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(queues("queue:a queue:b"), Some(vec![]));
    assert_eq!(queues("queue:a,b*"), None);
    assert_eq!(queues("queue:\"b*\""), Some(vec!["b*".to_owned()]));
    assert_eq!(queues("-queue:a"), None);
    assert_eq!(Filter::all().queue("q*").queues(), Some(vec!["q*".to_owned()]));
}

/// Terms that are well formed, so that what is behind the parser is reached.
fn term() -> impl Strategy<Value = String> {
    let body = prop_oneof![
        "state:(waiting|scheduled|ready|retrying|running|done|dead|cancelled)(,(done|ready|dead))?",
        "queue:(mail|bulk|\"mail\"|ma\\*|\\*)(,(bulk|b\\*))?",
        "kind:(email\\.send|email\\.\\*|x)",
        "attempt:(<|>|<=|>=)?[1-4]",
        "(due|created|failed|finished):(<|>)[0-9]{1,4}(s|m|h)",
        "payload\\.(user|to)\\.(id|0):(ana|\\*|1\\*)",
        "id:[0-9a-f]{6,32}",
    ];
    ("-?", body).prop_map(|(sign, body)| sign + &body)
}

fn job() -> impl Strategy<Value = JobRecord> {
    let queue = prop_oneof![Just("mail"), Just("bulk"), Just("b*")];
    (0..State::ALL.len(), queue, 0..5u32, 0..4 * HOUR).prop_map(|(state, queue, attempt, at)| JobRecord {
        state: State::ALL[state],
        queue: queue.into(),
        attempt,
        run_at: Timestamp::saturating_from_ms(NOW.as_ms() - 2 * HOUR + at),
        running: (state == 1).then(|| Running { fence: 1, worker: "web-1/4711".into(), until: NOW }),
        ..record()
    })
}

proptest! {
    #[test]
    fn parsing_never_panics(text in prop_oneof![any::<String>(), "[a-z.]{0,8}[-:,\"\\\\*<>0-9a-z \u{e9}\u{2003}]{0,40}"]) {
        if let Ok(filter) = Filter::parse(&text) {
            let _ = filter.matches(&record(), NOW);
        }
    }

    #[test]
    fn what_matches_lies_within_what_is_narrowed_to(terms in prop::collection::vec(term(), 0..4), job in job()) {
        let filter = Filter::parse(&terms.join(" ")).unwrap();
        if filter.matches(&job, NOW) {
            prop_assert!(filter.states().is_none_or(|states| states.contains(&job.state)));
            prop_assert!(filter.queues().is_none_or(|queues| queues.contains(&job.queue)));
        }
    }
}
