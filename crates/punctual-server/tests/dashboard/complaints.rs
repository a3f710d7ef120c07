//! What users of other dashboards ask for or curse, as far as no other test here is about it.

use std::{sync::atomic::Ordering, time::Duration};

use axum::http::StatusCode;
use punctual::{
    Client, Payload,
    job::Concurrency,
    store::{Settlement, Verdict},
    testing::TestQueue,
};
use punctual_server::{
    DashboardOptions,
    token::{NewToken, Role},
};

use super::{
    gated::Gated,
    html::{links, tags, unescape},
    site::{Site, counted, job, reserve, stores},
};

/// Enqueues jobs of the kind `k`.
async fn push(client: &Client, queue: &str, payloads: &[&str]) {
    let jobs = payloads.iter().map(|payload| job(client, "k", queue, Payload::json(*payload)));
    client.push(jobs.collect()).await.unwrap();
}

/// The jobs that a page lists.
fn listed(text: &str) -> usize {
    links(text).iter().filter(|link| link.starts_with("/jobs/")).count()
}

/// Complaint 1: jobs are found by what is in their payloads.
#[tokio::test]
async fn jobs_are_found_by_their_payloads() {
    for t in stores().await {
        let site = Site::new(&t.client, DashboardOptions::default());
        let users = [r#"{"user":{"id":42}}"#, r#"{"user":{"id":420}}"#, r#"{"user":{"id":42},"n":1}"#];
        push(&t.client, "mail", &users).await;
        for (filter, found) in [
            ("payload.user.id%3A42", 2),
            ("payload.user.id%3A420", 1),
            ("payload.user.id%3A42+payload.n%3A1", 1),
            ("payload.user.id%3A4", 0),
        ] {
            let page = site.get(&format!("/jobs?filter={filter}")).await;
            assert_eq!((page.status, listed(&page.text)), (StatusCode::OK, found), "{filter}");
        }
        t.destroy().await.unwrap();
    }
}

/// Complaint 4: the numbers of the tabs are those of the filter, or there are none.
#[tokio::test]
async fn numbers_of_tabs_follow_the_filter() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    push(&t.client, "mail", &["1", "2", "3", "4"]).await;
    push(&t.client, "sms", &["1", "2"]).await;
    let lease = reserve(&t.client, "mail", 1).await[0];
    let dead = Verdict::Dead { error: "421".to_owned() };
    t.client.store().settle(&[Settlement { lease, verdict: dead }], None).await.unwrap();
    let numbers = async |filter: &str| {
        let text = site.get(&format!("/jobs?filter={filter}")).await.text;
        let (_, tabs) = text.split_once("<nav class=\"tabs\"").unwrap();
        let counts = tabs.split("</nav>").next().unwrap().split("<span class=\"count\">").skip(1);
        counts.map(|rest| rest.split('<').next().unwrap().parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    // All, waiting, retrying, running, done, dead, cancelled.
    assert_eq!(numbers("").await, [6, 2, 0, 3, 0, 1, 0]);
    assert_eq!(numbers("state%3Adead").await, [6, 2, 0, 3, 0, 1, 0], "the tabs are the states");
    assert_eq!(numbers("queue%3Amail").await, [4, 0, 0, 3, 0, 1, 0]);
    assert_eq!(numbers("queue%3Asms").await, [2, 2, 0, 0, 0, 0, 0]);
    for other in ["kind%3Ak", "queue%3Amail+kind%3Ak", "queue%3Amail%2Csms", "-queue%3Amail"] {
        assert_eq!(numbers(other).await, [0; 0], "{other}: no number is kept for it");
    }
}

/// Complaint 11: who is asked knows how many jobs it is about, and nothing happens before.
#[tokio::test]
async fn a_confirmation_says_how_many_jobs_it_is_about() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    push(&t.client, "mail", &["1", "2", "3"]).await;
    let list = site.get("/jobs").await.text;
    let boxes = tags(&list).into_iter().filter(|tag| tag.attribute("name") == Some("job"));
    let picked: Vec<String> = boxes.map(|tag| tag.attribute("value").unwrap().to_owned()).collect();
    for (n, words) in [(1, "Delete 1 job?"), (3, "Delete 3 jobs?")] {
        let jobs = picked.iter().take(n).map(|job| ("job", job.as_str()));
        let fields: Vec<_> = [("action", "delete"), ("from", "jobs")].into_iter().chain(jobs).collect();
        let asked = site.post("/jobs/confirm", &fields).await.text;
        assert!(asked.contains(words), "{words}: {asked}");
    }
    let queue = site.get("/queues/mail").await.text;
    assert!(queue.contains("Deletes 3 waiting jobs"), "{queue}");
    assert_eq!(t.client.count(None).await.unwrap().waiting, 3);
}

/// Complaint 13: a search that finds nothing ends, says how far it came, and goes on when asked.
#[tokio::test]
async fn a_long_search_ends_and_goes_on() {
    const JOBS: usize = 7_000;
    let t = TestQueue::new();
    for _ in 0..JOBS / 1_000 {
        push(&t.client, "mail", &["1"; 1_000]).await;
    }
    push(&t.client, "mail", &["7"]).await;
    t.advance(Duration::from_millis(1));
    let (client, calls) = counted(&t.client);
    let site = Site::new(&client, DashboardOptions::default());
    let (mut path, mut found, mut pages) = ("/jobs?filter=kind%3Anone".to_owned(), 0, 0);
    loop {
        let before = calls.load(Ordering::Relaxed);
        let text = site.get(&path).await.text;
        let cost = calls.load(Ordering::Relaxed) - before;
        assert!(cost <= 6, "{cost} calls");
        (found, pages) = (found + listed(&text), pages + 1);
        let next = links(&text).into_iter().find(|link| link.contains("cursor="));
        assert_eq!(next.is_some(), text.contains("Search on"), "{text}");
        match next {
            Some(next) => path = next,
            None => break,
        }
    }
    assert!((2..=JOBS / 1_000).contains(&pages) && found == 0, "{pages} pages, {found} found");
}

/// Complaint 13: queues have pages, too.
#[tokio::test]
async fn queues_are_paged_and_each_is_listed_once() {
    let t = TestQueue::new();
    let jobs = (0..250).map(|n| job(&t.client, "k", &format!("q{n:03}"), Payload::json("1")));
    t.client.push(jobs.collect()).await.unwrap();
    let site = Site::new(&t.client, DashboardOptions::default());
    let (mut path, mut found) = (Some("/queues".to_owned()), Vec::new());
    while let Some(page) = path.take() {
        let text = site.get(&page).await.text;
        found.extend(links(&text).into_iter().filter(|link| link.starts_with("/queues/q")));
        let next = tags(&text).into_iter().find(|tag| tag.attribute("rel") == Some("next"));
        path = next.map(|tag| unescape(tag.attribute("href").unwrap()));
    }
    let expected: Vec<String> = (0..250).map(|n| format!("/queues/q{n:03}")).collect();
    assert_eq!(found, expected);
}

/// Complaint 15: the age of the job that has been due for longest, wherever queues are shown.
#[tokio::test]
async fn the_age_of_the_oldest_due_job_is_shown() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    for path in ["/", "/queues/mail"] {
        t.client.queue("mail").pause("ana", "").await.unwrap();
        assert!(site.get(path).await.text.contains("No job is due."), "{path}");
    }
    push(&t.client, "mail", &["1"]).await;
    t.advance(Duration::from_mins(1));
    push(&t.client, "mail", &["2"]).await;
    push(&t.client, "sms", &["3"]).await;
    t.advance(Duration::from_secs(30));
    for (path, is_other) in [("/", true), ("/queues", true), ("/queues/mail", false)] {
        let text = site.get(path).await.text;
        assert!(text.contains("1m 30s"), "{path}: {text}");
        assert_eq!(text.contains(">30s<"), is_other, "{path}: that of the other queue");
    }
}

/// Jobs that their key holds back are due, and their age is shown wherever queues are.
#[tokio::test]
async fn the_age_of_the_oldest_blocked_job_is_shown() {
    let t = TestQueue::new();
    let keyed = || {
        let mut job = job(&t.client, "k", "mail", Payload::json("1"));
        job.concurrency = Some(Concurrency { key: "tenant".to_owned(), limit: 1 });
        job
    };
    t.client.push(vec![keyed(), keyed(), keyed()]).await.unwrap();
    t.advance(Duration::from_secs(83));
    // Looks at all of them: one runs, and the others are found to be blocked.
    assert_eq!(reserve(&t.client, "mail", 1).await.len(), 1);
    let site = Site::new(&t.client, DashboardOptions::default());
    for path in ["/", "/queues", "/queues/mail"] {
        let text = site.get(path).await.text;
        assert!(text.contains("1m 23s") && !text.contains("No job is due."), "{path}: {text}");
    }
}

/// Complaint 7: whoever may only look is refused by every route that changes something, with any form.
#[tokio::test]
async fn a_reader_is_refused_by_every_route_of_the_dashboard() {
    let t = TestQueue::new();
    push(&t.client, "mail", &["1"]).await;
    let before = t.client.list(&Site::all()).await.unwrap().jobs;
    let reader = Gated::new(&t.client, DashboardOptions::default(), NewToken::new("ana", Role::Read)).await;
    let routes = crate::post_routes();
    assert_eq!(routes.len(), 18);
    for route in routes {
        let answer = reader.post(&route, &[("action", "delete"), ("name", "mail")]).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{route}");
    }
    assert_eq!(t.client.list(&Site::all()).await.unwrap().jobs, before);
}
