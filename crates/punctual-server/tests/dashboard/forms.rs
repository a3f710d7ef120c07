//! The forms of a schedule, of the settings of a queue and of a job: what they do, and what they refuse.

use std::time::Duration;

use axum::http::StatusCode;
use punctual::{
    JobId, JobRecord, NewJob, Payload, State, Timestamp, Unique, When,
    schedule::{Cron, Misfire, Schedule},
    store::{Order, QueueSettings, Rate},
    testing::TestQueue,
};
use punctual_server::DashboardOptions;

use super::{
    html::{Form, forms, links, unescape},
    site::{Answer, Site, job, reserve, stores},
};

type Pairs = Vec<(String, String)>;

fn site(t: &TestQueue) -> Site {
    Site::new(&t.client, DashboardOptions::default())
}

/// The form of a page that is sent to this address.
async fn form(site: &Site, page: &str, action: &str) -> Pairs {
    let answer = site.get(page).await;
    assert_eq!(answer.status, StatusCode::OK, "{page}: {}", answer.text);
    let found = forms(&answer.text).into_iter().find(|form| form.action == action);
    let Form { fields, .. } =
        found.unwrap_or_else(|| panic!("{page} has no form for {action}: {}", answer.text));
    fields
}

/// A form with other values in some fields.
fn with(form: &Pairs, changes: &[(&str, &str)]) -> Pairs {
    let mut form = form.clone();
    form.retain(|(name, _)| changes.iter().all(|(changed, _)| name != changed));
    form.extend(changes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    form
}

async fn send(site: &Site, action: &str, form: &Pairs) -> Answer {
    let pairs: Vec<(&str, &str)> = form.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    site.post(action, &pairs).await
}

/// Sends a form that leads to a page, and returns the text of this page.
async fn done(site: &Site, action: &str, form: &Pairs) -> String {
    let answer = send(site, action, form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{action}: {}", answer.text);
    let page = site.get(&answer.location).await;
    assert_eq!(page.status, StatusCode::OK, "{}: {}", answer.location, page.text);
    unescape(&page.text)
}

async fn push(t: &TestQueue, job: NewJob) -> JobId {
    t.client.push(vec![job]).await.unwrap()[0].id().unwrap()
}

async fn get(t: &TestQueue, id: JobId) -> JobRecord {
    t.client.get(id).await.unwrap().unwrap()
}

// ── schedules ──

const NIGHTLY: &str = "/schedules/nightly%20%2F%20report";
const NAME: &str = "nightly / report";

async fn nightly(t: &TestQueue) {
    let cron = Cron::new("30 2 * * *").unwrap().in_tz("Europe/Berlin").unwrap();
    let cron = cron.on_misfire(Misfire::RunAll { at_most: 3 }).unwrap();
    let of = job(&t.client, "report.build", "reports", Payload::json(r#"{"big":9007199254740993}"#));
    t.client.schedule(NAME).put(Schedule::new(cron, of).unwrap()).await.unwrap();
}

#[tokio::test]
async fn the_page_of_a_schedule_says_when_it_ticks_and_what_it_enqueues() {
    for t in stores().await {
        t.clock.set(Timestamp::saturating_from_ms(1_774_000_000_000));
        nightly(&t).await;
        let site = site(&t);
        let listed = site.get("/schedules").await.text;
        assert!(links(&listed).contains(&NIGHTLY.to_owned()), "{listed}");
        let text = unescape(&site.get(NIGHTLY).await.text);
        for part in [
            "30 2 * * *",
            "Europe/Berlin",
            "run the last 3",
            "2026-03-21 02:30:00 CET",
            "2026-03-25 02:30:00 CET",
            r#"{"big":9007199254740993}"#,
            "report.build",
            "Waiting tick: ",
            "No run was found",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("2026-03-26"), "more than five ticks: {text}");
        // The night in which the clock leaves out half past two.
        t.clock.set(Timestamp::saturating_from_ms(1_774_700_000_000));
        let text = site.get(NIGHTLY).await.text;
        assert!(text.contains("2026-03-29 03:00:00 CEST") && text.contains("right after the gap"), "{text}");
        assert_eq!(site.get("/schedules/none").await.status, StatusCode::NOT_FOUND);
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_schedule_is_paused_resumed_fired_and_deleted() {
    for t in stores().await {
        nightly(&t).await;
        let site = site(&t);
        let schedule = t.client.schedule(NAME);
        let to = |action: &str| format!("{NIGHTLY}/{action}");

        let fire = form(&site, NIGHTLY, &to("fire")).await;
        let text = done(&site, &to("fire"), &fire).await;
        assert!(text.contains("Its job was enqueued once") && text.contains("See job"), "{text}");
        assert_eq!(t.client.count(Some("reports")).await.unwrap().due, 1);
        reserve(&t.client, "reports", 1).await;
        let text = site.get(NIGHTLY).await.text;
        assert!(text.contains("<table>") && text.contains("running"), "the last run is shown: {text}");

        let pause = form(&site, NIGHTLY, &to("pause")).await;
        let text = done(&site, &to("pause"), &with(&pause, &[("by", "ana"), ("reason", "moved")])).await;
        assert!(text.contains("The schedule is paused") && text.contains("by ana"), "{text}");
        assert!(text.contains("No tick is waiting") && text.contains("if it were not paused"), "{text}");
        let paused = schedule.get().await.unwrap().unwrap().schedule.paused.unwrap();
        assert_eq!((paused.by.as_str(), paused.reason.as_str()), ("ana", "moved"));

        // The schedule has changed since the first form was made.
        let text = done(&site, &to("fire"), &fire).await;
        assert!(text.contains("the schedule changed after this page was loaded"), "{text}");
        assert_eq!(t.client.count(Some("reports")).await.unwrap().due, 0);

        let resume = form(&site, NIGHTLY, &to("resume")).await;
        let text = done(&site, &to("resume"), &resume).await;
        assert!(text.contains("The schedule is resumed"), "{text}");
        assert!(schedule.waiting().await.unwrap().is_some());
        for (action, stale) in [("pause", &pause), ("resume", &resume)] {
            let text = done(&site, &to(action), stale).await;
            assert!(text.contains("Nothing was done"), "{action}: {text}");
        }
        assert!(schedule.get().await.unwrap().unwrap().schedule.paused.is_none());

        let delete = form(&site, NIGHTLY, &to("delete")).await;
        let text = done(&site, &to("delete"), &with(&delete, &[("name", "nightly")])).await;
        assert!(text.contains("the name does not match the schedule"), "{text}");
        let stale = with(&delete, &[("name", NAME), ("generation", "1")]);
        assert!(done(&site, &to("delete"), &stale).await.contains("Nothing was done"));
        assert!(schedule.get().await.unwrap().is_some());
        let text = done(&site, &to("delete"), &with(&delete, &[("name", NAME)])).await;
        assert!(text.contains("The schedule is deleted") && text.contains("No schedule"), "{text}");
        assert!(schedule.get().await.unwrap().is_none());
        assert_eq!(send(&site, &to("fire"), &fire).await.status, StatusCode::NOT_FOUND);
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_fire_into_a_full_queue_is_explained() {
    let t = TestQueue::new();
    nightly(&t).await;
    t.client.queue("reports").update(|settings| settings.max_jobs = Some(1)).await.unwrap();
    let site = site(&t);
    let fire = form(&site, NIGHTLY, &format!("{NIGHTLY}/fire")).await;
    let answer = send(&site, &format!("{NIGHTLY}/fire"), &fire).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert!(answer.text.contains("Queue is full") && answer.text.contains("<nav"), "{}", answer.text);
}

// ── settings ──

const SETTINGS: &str = "/queues/mail/settings";

async fn settings(t: &TestQueue) -> QueueSettings {
    t.client.queue("mail").show().await.unwrap().unwrap().settings
}

#[tokio::test]
async fn only_the_settings_that_a_person_changes_are_changed() {
    for t in stores().await {
        let queue = t.client.queue("mail");
        let minute = |settings: &mut QueueSettings| {
            (settings.max_jobs, settings.defaults.timeout) = (Some(9), Some(Duration::from_mins(1)));
        };
        queue.update(minute).await.unwrap();
        queue.pause("ana", "moved").await.unwrap();
        let site = site(&t);
        let page = site.get("/queues/mail").await.text;
        assert!(links(&page).contains(&SETTINGS.to_owned()), "{page}");
        let first = form(&site, SETTINGS, SETTINGS).await;
        // Another person changes other settings meanwhile.
        let other = |settings: &mut QueueSettings| {
            (settings.order, settings.defaults.timeout) = (Order::Lifo, Some(Duration::from_mins(2)));
        };
        queue.update(other).await.unwrap();
        let before = settings(&t).await;
        let changes = [
            ("concurrency", "20"),
            ("rate", "100/1m burst 10"),
            ("max_jobs", ""),
            ("max_bytes", "64MiB"),
            ("group.weight", "2"),
            ("retention.done.age", "7d"),
            ("defaults.priority", "low"),
            ("defaults.backoff", "exp 5s..1h"),
            ("defaults.lease", "90s"),
            // What the form showed, in other words.
            ("defaults.timeout", "60s"),
        ];
        let text = done(&site, SETTINGS, &with(&first, &changes)).await;
        assert!(
            text.contains("The settings are changed.") && text.contains("100 per 1m, burst 10"),
            "{text}"
        );
        let mut expected = before;
        expected.concurrency = Some(20);
        expected.rate = Some(Rate { max: 100, period_ms: 60_000, burst: 10 });
        (expected.max_jobs, expected.max_bytes) = (None, Some(64 << 20));
        expected.group.weight = Some(2);
        expected.done.age_ms = 7 * 86_400_000;
        expected.defaults.priority = Some(punctual::Priority::Low);
        expected.defaults.backoff = Some("exp 5s..1h".parse().unwrap());
        expected.defaults.lease = Some(Duration::from_secs(90));
        assert_eq!(settings(&t).await, expected);
        assert_eq!(expected.paused.as_ref().unwrap().by, "ana");
        // The same again, and as it is.
        let text = done(&site, SETTINGS, &with(&first, &changes)).await;
        assert!(text.contains("Nothing was changed"), "{text}");
        let again = form(&site, SETTINGS, SETTINGS).await;
        assert!(done(&site, SETTINGS, &again).await.contains("Nothing was changed"));
        assert_eq!(settings(&t).await, expected);
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_setting_that_somebody_else_changed_is_explained_first() {
    for t in stores().await {
        let queue = t.client.queue("mail");
        queue.update(|settings| settings.concurrency = Some(5)).await.unwrap();
        let site = site(&t);
        let stale = form(&site, SETTINGS, SETTINGS).await;
        queue.update(|settings| settings.concurrency = Some(7)).await.unwrap();
        let stale = with(&stale, &[("concurrency", "20"), ("max_jobs", "3")]);
        let refused = send(&site, SETTINGS, &stale).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text);
        let text = unescape(&refused.text);
        assert!(
            text.contains("Somebody changed it from 5 to 7") && text.contains("Nothing was changed"),
            "{text}"
        );
        let now = settings(&t).await;
        assert_eq!((now.concurrency, now.max_jobs), (Some(7), None));
        // The form that is shown keeps what was typed, and knows what the person has read.
        let second = forms(&refused.text).into_iter().find(|form| form.action == SETTINGS).unwrap().fields;
        done(&site, SETTINGS, &second).await;
        let now = settings(&t).await;
        assert_eq!((now.concurrency, now.max_jobs), (Some(20), Some(3)));
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn settings_that_are_wrong_are_marked_and_nothing_is_changed() {
    let t = TestQueue::new();
    t.client.queue("mail").update(|settings| settings.concurrency = Some(5)).await.unwrap();
    let before = settings(&t).await;
    let site = site(&t);
    let fine = with(&form(&site, SETTINGS, SETTINGS).await, &[("max_jobs", "3")]);
    for (key, value, words) in [
        ("concurrency", "many", "a number, or none"),
        ("concurrency", "0", "not within 1 to 1000000"),
        ("rate", "100", "starts per period"),
        ("order", "up", "fifo or lifo"),
        ("group.weight", "101", "not within 1 to 100"),
        ("retention.dead.age", "", "a duration"),
        ("retention.done.bytes", "lots", "bytes"),
        ("defaults.lease", "1ms", "lease_ms"),
        ("defaults.priority", "urgent", "high, normal"),
    ] {
        let answer = send(&site, SETTINGS, &with(&fine, &[(key, value)])).await;
        let text = unescape(&answer.text);
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{key}={value}: {text}");
        assert!(text.contains(words) && text.contains("Nothing was changed"), "{key}={value}: {text}");
        assert!(text.contains("value=\"3\""), "what was typed is kept: {text}");
    }
    let mut incomplete = fine.clone();
    incomplete.retain(|(name, _)| name != "was.rate");
    let answer = send(&site, SETTINGS, &incomplete).await;
    assert!(answer.status == StatusCode::BAD_REQUEST && answer.text.contains("not complete"));
    assert_eq!(settings(&t).await, before);
    for answer in [site.get("/queues/none/settings").await, send(&site, "/queues/none/settings", &fine).await]
    {
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
    }
    assert!(t.client.queue("none").show().await.unwrap().is_none());
}

// ── payloads ──

async fn editable(t: &TestQueue, payload: Payload) -> (JobId, String) {
    let mut of = job(&t.client, "k", "q", payload);
    of.run_at = When::In(Duration::from_hours(1));
    let id = push(t, of).await;
    (id, format!("/jobs/{id}/edit"))
}

#[tokio::test]
async fn a_payload_is_edited_as_it_is_typed() {
    for t in stores().await {
        let site = site(&t);
        let before = "\n{\"order\": 9007199254740993,\n \"text\": \"</textarea>&amp;\"}\n";
        let (id, edit) = editable(&t, Payload::json(before)).await;
        assert!(links(&site.get(&format!("/jobs/{id}")).await.text).contains(&edit));
        let first = form(&site, &edit, &edit).await;
        assert!(first.contains(&("payload".to_owned(), before.to_owned())), "{first:?}");
        let after = "{\"order\": 123456789012345678901234567890.10,\r\n \"e\": 1E400}\r\n";
        let text = done(&site, &edit, &with(&first, &[("payload", after)])).await;
        assert!(text.contains("The payload is changed"), "{text}");
        let now = get(&t, id).await;
        assert_eq!(String::from_utf8(now.payload.bytes).unwrap(), after.replace("\r\n", "\n"));
        assert_eq!((now.version, now.state), (2, State::Waiting));

        // The version has changed: the text is shown again, and the job stays.
        let stale = send(&site, &edit, &with(&first, &[("payload", "[\"mine\"]")])).await;
        let text = unescape(&stale.text);
        assert_eq!(stale.status, StatusCode::CONFLICT, "{text}");
        assert!(text.contains("changed or started") && text.contains("[\"mine\"]"), "{text}");
        assert_eq!(get(&t, id).await.version, 2);
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_payload_that_is_wrong_is_explained_and_not_stored() {
    let t = TestQueue::new();
    let site = site(&t);
    let (id, edit) = editable(&t, Payload::json("1")).await;
    let first = form(&site, &edit, &edit).await;
    for (payload, words) in [
        ("{\"a\":}", "not JSON"),
        ("", "not JSON"),
        ("1 2", "not JSON"),
        (&"9".repeat(65 * 1024), "over 64 KiB"),
    ] {
        let answer = send(&site, &edit, &with(&first, &[("payload", payload)])).await;
        let text = unescape(&answer.text);
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{words}");
        assert!(
            text.contains(words) && text.contains("Nothing was changed") && text.contains(payload),
            "{words}"
        );
    }
    let long = "9".repeat(300 * 1024);
    let answer = send(&site, &edit, &with(&first, &[("payload", &long)])).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    let answer = site.post(&edit, &[("payload", "1")]).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(get(&t, id).await.version, 1);

    // Another text is not read as JSON.
    let plain = Payload { bytes: b"to: ana".to_vec(), content_type: "text/plain".into() };
    let (id, edit) = editable(&t, plain).await;
    let first = form(&site, &edit, &edit).await;
    done(&site, &edit, &with(&first, &[("payload", "to: bo")])).await;
    assert_eq!(get(&t, id).await.payload.bytes, b"to: bo");

    // What cannot be edited has no button.
    let binary = Payload { bytes: vec![0xff, 0xfe], content_type: "image/png".into() };
    let ends = Payload { bytes: b"a\r\nb".to_vec(), content_type: "text/plain".into() };
    for payload in [binary, ends, Payload::json(format!("\"{}\"", "x".repeat(64 * 1024)))] {
        let (id, edit) = editable(&t, payload).await;
        assert!(!site.get(&format!("/jobs/{id}")).await.text.contains("Edit payload"));
        assert_eq!(site.get(&edit).await.status, StatusCode::BAD_REQUEST);
    }
    let ran = push(&t, job(&t.client, "k", "ran", Payload::json("1"))).await;
    let edit = format!("/jobs/{ran}/edit");
    let first = form(&site, &edit, &edit).await;
    reserve(&t.client, "ran", 1).await;
    assert!(!site.get(&format!("/jobs/{ran}")).await.text.contains("Edit payload"));
    let answer = send(&site, &edit, &with(&first, &[("payload", "2")])).await;
    assert!(answer.status == StatusCode::CONFLICT && get(&t, ran).await.payload.bytes == b"1");
}

// ── copies ──

/// The form that duplicates a job.
async fn copy_form(site: &Site, id: JobId, due: &str) -> (String, Pairs) {
    let action = format!("/jobs/{id}/duplicate");
    let form = form(site, &format!("/jobs/{id}"), &action).await;
    (action, with(&form, &[("due", due)]))
}

/// The id of the job that a page is about.
fn id_of(page: &str) -> JobId {
    let (_, rest) = page.split_once("<p class=\"id\">").unwrap();
    rest.split('<').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_copy_has_everything_but_the_id_and_what_became_of_the_job() {
    for t in stores().await {
        let site = site(&t);
        let mut of = job(&t.client, "k", "q", Payload::json("[9007199254740993]"));
        of.run_at = When::In(Duration::from_mins(90));
        of.expires_at = Some(When::In(Duration::from_hours(2)));
        (of.group, of.tags) = (Some("acme".to_owned()), vec!["vip".to_owned()]);
        of.headers.insert("traceparent".to_owned(), "00-abc".to_owned());
        (of.options.max_attempts, of.options.timeout) = (Some(3), Some(Duration::from_secs(7)));
        of.concurrency = Some(punctual::job::Concurrency { key: "c".to_owned(), limit: 2 });
        of.unique = Some(Unique::key("u"));
        let id = push(&t, of).await;
        t.clock.advance(Duration::from_mins(1));
        let now = t.client.store().now().await.unwrap();
        assert!(site.get(&format!("/jobs/{id}")).await.text.contains("Due in 1h 30m, as this one was"));

        let (action, later) = copy_form(&site, id, "later").await;
        let text = done(&site, &action, &later).await;
        assert!(text.contains("without its unique key, which another job holds"), "{text}");
        assert!(links(&text).contains(&format!("/jobs/{id}")), "the holder is shown: {text}");
        let (original, copy) = (get(&t, id).await, get(&t, id_of(&text)).await);
        assert_eq!(copy.run_at, now.after(Duration::from_mins(90)));
        assert_eq!(copy.expires_at, Some(now.after(Duration::from_hours(2))));
        let mut expected = original.clone();
        (expected.id, expected.unique, expected.created_at) = (copy.id, None, now);
        (expected.run_at, expected.expires_at) = (copy.run_at, copy.expires_at);
        assert_eq!(copy, expected);

        // The key is free after the job has ended.
        t.client.cancel(id).await.unwrap();
        let (action, form) = copy_form(&site, id, "now").await;
        let text = done(&site, &action, &form).await;
        assert!(text.contains("The copy is enqueued. This is it."), "{text}");
        let copy = get(&t, id_of(&text)).await;
        assert_eq!((copy.run_at, copy.unique, copy.state), (now, original.unique, State::Waiting));
        // Sent twice, it makes one copy.
        done(&site, &action, &form).await;
        assert_eq!(t.client.count(Some("q")).await.unwrap().total(), 3);
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_copy_that_cannot_be_made_is_explained() {
    let t = TestQueue::new();
    let site = site(&t);
    let id = push(&t, job(&t.client, "k", "q", Payload::json("1"))).await;
    let (action, now) = copy_form(&site, id, "now").await;
    assert!(!site.get(&format!("/jobs/{id}")).await.text.contains("as this one was"));
    for wrong in [with(&now, &[("due", "later")]), with(&now, &[("copy", "x")]), with(&now, &[("job", "x")])]
    {
        assert_eq!(send(&site, &action, &wrong).await.status, StatusCode::BAD_REQUEST, "{wrong:?}");
    }
    t.client.queue("q").update(|settings| settings.max_jobs = Some(1)).await.unwrap();
    assert!(done(&site, &action, &now).await.contains("the queue is at its cap"));
    t.client.queue("q").update(|settings| settings.max_jobs = None).await.unwrap();
    t.client.edit(id, Payload::json("2")).await.unwrap();
    assert!(done(&site, &action, &now).await.contains("the job changed after this page was loaded"));
    assert_eq!(t.client.count(None).await.unwrap().total(), 1);
}

/// Otherwise the copy of a paused schedule's tick would keep the next tick from being enqueued.
#[tokio::test]
async fn a_copy_of_a_tick_is_none() {
    let t = TestQueue::new();
    nightly(&t).await;
    let site = site(&t);
    let tick = t.client.schedule(NAME).waiting().await.unwrap().unwrap();
    t.client.schedule(NAME).pause("ana", "").await.unwrap();
    let page = site.get(&format!("/jobs/{}", tick.id)).await.text;
    assert!(page.contains("It is no tick of its schedule."), "{page}");
    let (action, form) = copy_form(&site, tick.id, "now").await;
    let text = done(&site, &action, &form).await;
    let copy = get(&t, id_of(&text)).await;
    assert_eq!((copy.unique, copy.headers.get("schedule_generation")), (None, None));
    assert_eq!(copy.headers.get("schedule").map(String::as_str), Some(NAME));
    t.client.schedule(NAME).resume().await.unwrap();
    assert!(t.client.schedule(NAME).waiting().await.unwrap().is_some());
}
