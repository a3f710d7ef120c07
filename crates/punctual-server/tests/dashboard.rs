//! What the dashboard shows, what its forms do, and what it refuses. Requests go to the router without a socket.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

mod dashboard {
    mod complaints;
    mod forms;
    mod gated;
    pub(crate) mod html;
    mod matching;
    mod roles;
    pub(crate) mod site;
    mod workers;
}

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::http::StatusCode;
use dashboard::{
    html::{Form, actions, forms, links, tags, unescape},
    site::{Site, counted, fill, job, purge_form, reserve, stores},
};
use punctual::{
    CancellationToken, Client, Ctx, JobId, JobRecord, Outcome, Payload, Priority, State, Unique, When,
    Worker,
    client::Cancelled,
    schedule::{Cron, Schedule},
    store::{QueueOp, Settlement, Verdict},
    testing::{Fault, FaultyStore, TestQueue},
};
use punctual_server::DashboardOptions;

/// The pages that need no argument.
const PAGES: [&str; 10] = [
    "",
    "/upcoming",
    "/jobs",
    "/queues",
    "/failures",
    "/schedules",
    "/topics",
    "/workers",
    "/operations",
    "/activity",
];

fn read_only() -> DashboardOptions {
    DashboardOptions { read_only: true, ..DashboardOptions::default() }
}

fn under(base: &str) -> DashboardOptions {
    DashboardOptions { base_path: base.to_owned(), ..DashboardOptions::default() }
}

/// All pages that a site links to, from its overview on, by links that are followed.
async fn crawl(site: &Site, follows: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let mut seen = BTreeSet::new();
    let (mut open, mut pages) = (vec![site.path("")], Vec::new());
    while let Some(path) = open.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        assert!(seen.len() < 2_000, "the pages never end: {path}");
        let answer = site.get(&path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
        if path.contains("style.css") || path.contains("live.js") {
            continue;
        }
        open.extend(links(&answer.text).into_iter().filter(|link| link.starts_with('/') && follows(link)));
        pages.push((path, answer.text));
    }
    pages
}

// ── pages ──

#[tokio::test]
async fn every_page_is_shown_with_and_without_jobs() {
    for t in stores().await {
        let site = Site::new(&t.client, DashboardOptions::default());
        for page in PAGES {
            let answer = site.get(&site.path(page)).await;
            assert_eq!(answer.status, StatusCode::OK, "{page}: {}", answer.text);
            assert_eq!(answer.text.matches("<h1").count(), 1, "{page}");
            assert!(answer.text.contains("<main id=\"main\""), "{page}");
        }
        let empty = site.get("/").await.text;
        assert!(empty.contains("Enqueue the first job"), "{empty}");
        fill(&t, "plain").await;
        let now = t.client.store().now().await.unwrap().as_ms().to_string();
        let order = [("action", "delete"), ("filter", "queue:none"), ("confirmed", now.as_str())];
        assert_eq!(site.post("/operations", &order).await.status, StatusCode::SEE_OTHER);
        for page in PAGES {
            let answer = site.get(&site.path(page)).await;
            assert_eq!(answer.status, StatusCode::OK, "{page}");
            assert!(!answer.text.contains("id=\"nothing\""), "{page} says that there is nothing");
        }
        t.destroy().await.unwrap();
    }
}

/// Complaint 5: it works under a path. See also the real proxies in the tests of the command line.
#[tokio::test]
async fn every_link_of_every_page_leads_to_a_page_under_the_base_path() {
    for base in ["", "/ops/queue"] {
        let t = TestQueue::new();
        fill(&t, "plain & simple").await;
        let site = Site::new(&t.client, under(base));
        let pages = crawl(&site, |_| true).await;
        assert!(40 < pages.len(), "{} pages", pages.len());
        for (path, text) in &pages {
            for link in links(text).into_iter().chain(actions(text)) {
                let is_own = link.starts_with(&format!("{base}/")) || link == base;
                assert!(is_own || link == "#main" || link.starts_with("data:"), "{path} links to {link}");
            }
        }
    }
}

#[tokio::test]
async fn a_filter_that_is_wrong_keeps_its_text_and_says_what_to_write() {
    let t = TestQueue::new();
    fill(&t, "plain").await;
    let site = Site::new(&t.client, DashboardOptions::default());
    let answer = site.get("/jobs?filter=kimd%3Aemail.%2A+error%3A%22a+b%22").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let text = unescape(&answer.text);
    assert!(text.contains("value=\"kimd:email.* error:\"a b\"\""), "{text}");
    assert!(text.contains("did you mean `kind`?") && text.contains("aria-invalid"), "{text}");
}

#[tokio::test]
async fn a_job_is_shown_with_everything_that_the_store_keeps() {
    for t in stores().await {
        let big = r#"{"order":9007199254740993, "ledger":123456789012345678901234567890.10}"#;
        let mut of = job(&t.client, "order.close", "orders", Payload::json(big));
        of.unique = Some(Unique::key("order-7"));
        of.tags = vec!["vip".to_owned()];
        of.headers.insert("traceparent".to_owned(), "00-abc".to_owned());
        of.run_at = When::In(Duration::from_mins(5));
        let id = t.client.push(vec![of]).await.unwrap()[0].id().unwrap();
        let bytes = Payload { bytes: vec![0xff, 0xfe, 0x00], content_type: "image/png".into() };
        let image = job(&t.client, "image.store", "orders", bytes);
        let image = t.client.push(vec![image]).await.unwrap()[0].id().unwrap();
        let site = Site::new(&t.client, DashboardOptions::default());
        let text = unescape(&site.get(&format!("/jobs/{id}")).await.text);
        for part in [big, "order-7", "vip", "00-abc", "The job is due ", "(in 5m)", &id.to_string()] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = site.get(&format!("/jobs/{image}")).await.text;
        assert!(text.contains("3 bytes, image/png") && text.contains("not text"), "{text}");
        assert!(text.contains("nothing holds it back") && text.contains("1 due"), "{text}");
        t.destroy().await.unwrap();
    }
}

/// Complaint 9: what is secret can be hidden.
#[tokio::test]
async fn payloads_can_be_hidden() {
    let t = TestQueue::new();
    fill(&t, "secret").await;
    let options = DashboardOptions { hide_payloads: true, ..DashboardOptions::default() };
    let site = Site::new(&t.client, options);
    for job in t.client.list(&Site::all()).await.unwrap().jobs {
        let text = site.get(&format!("/jobs/{}", job.id)).await.text;
        assert!(!text.contains("payload of secret") && !text.contains("header of secret"), "{text}");
        assert!(!text.contains("result of secret"), "{text}");
    }
}

#[tokio::test]
async fn jobs_are_paged_and_each_is_listed_once() {
    for t in stores().await {
        let jobs = (0..120).map(|_| job(&t.client, "k", "q", Payload::json("1"))).collect();
        t.client.push(jobs).await.unwrap();
        let site = Site::new(&t.client, DashboardOptions::default());
        let (mut path, mut found) = (Some("/jobs?filter=queue%3Aq".to_owned()), Vec::new());
        while let Some(page) = path.take() {
            let text = site.get(&page).await.text;
            let ids = links(&text).into_iter().filter(|link| link.strip_prefix("/jobs/").is_some());
            found.extend(ids);
            path = links(&text).into_iter().find(|link| link.contains("cursor="));
        }
        assert_eq!((found.len(), found.iter().collect::<BTreeSet<_>>().len()), (120, 120));
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn failures_are_grouped_by_what_their_errors_have_in_common() {
    let t = TestQueue::new();
    let jobs = (0..5).map(|_| job(&t.client, "mail.send", "mail", Payload::json("1"))).collect();
    t.client.push(jobs).await.unwrap();
    let errors = (0..5).map(|n| format!("no user \"u{n}\" after {n}{n} s"));
    for (lease, error) in reserve(&t.client, "mail", 1).await.into_iter().zip(errors) {
        let settlement = Settlement { lease, verdict: Verdict::Dead { error } };
        t.client.store().settle(&[settlement], None).await.unwrap();
    }
    let site = Site::new(&t.client, DashboardOptions::default());
    let text = unescape(&site.get("/failures").await.text);
    assert!(text.contains("no user … after # s") && text.contains("1 group of 5 jobs"), "{text}");
    assert!(text.contains("Searched for dead and retrying jobs among 5."), "{text}");
    let link = links(&text).into_iter().find(|link| link.contains("state%3Adead%2Cretrying")).unwrap();
    let listed = site.get(&link).await.text;
    assert_eq!(tags(&listed).iter().filter(|tag| tag.attribute("name") == Some("job")).count(), 5, "{link}");
}

/// Complaint 3: the dashboard's own counting must not load the database.
#[tokio::test]
async fn the_overview_costs_the_same_however_many_queues_there_are() {
    let t = TestQueue::new();
    let (client, calls) = counted(&t.client);
    let site = Site::new(&client, DashboardOptions::default());
    let mut costs = Vec::new();
    for queues in [0..150, 150..10_000] {
        for n in queues {
            let pause = QueueOp::Pause { by: "ana".to_owned(), reason: String::new() };
            t.client.store().queue(&format!("q{n:05}"), &pause).await.unwrap();
        }
        let before = calls.load(Ordering::Relaxed);
        let answer = site.get("/").await;
        costs.push(calls.load(Ordering::Relaxed) - before);
        assert!(answer.text.len() < 200_000, "{} bytes", answer.text.len());
    }
    assert_eq!(costs, [110, 110]);
}

/// They are counted on, and the next page shows the counts.
#[tokio::test(start_paused = true)]
async fn very_many_queues_hold_up_no_page() {
    let t = TestQueue::new();
    let queues = (0..1_000).map(|n| job(&t.client, "k", &format!("queue-{n}"), Payload::json("1")));
    t.client.push(queues.collect()).await.unwrap();
    let store = FaultyStore::new(Arc::clone(t.client.store()), |verb| match verb {
        "count" | "upcoming" => Fault::Late(Duration::from_secs(5)),
        _ => Fault::Pass,
    });
    let site = Site::new(&Client::new(Arc::new(store)), DashboardOptions::default());
    let begin = tokio::time::Instant::now();
    let pages = ["/", "/upcoming", "/jobs", "/failures"];
    for page in pages {
        let page = site.get(page).await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(!page.text.contains("1,000</span>"), "{}", page.text);
    }
    assert_eq!(begin.elapsed(), Duration::from_secs(1), "all wait for the same counts");
    assert!(site.get("/").await.text.contains("…</span>"));
    assert!(site.get("/upcoming").await.text.contains("are being counted"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let texts = [site.get("/").await.text, site.get("/jobs").await.text];
    assert!(texts.iter().all(|text| text.contains("1,000</span>")), "{texts:?}");
    assert!(!site.get("/upcoming").await.text.contains("are being counted"));
}

#[tokio::test]
async fn the_first_page_is_at_most_sixty_kilobytes_with_all_that_it_loads() {
    let t = TestQueue::new();
    let of = |n| job(&t.client, "k", &format!("q{n:05}"), Payload::json("1"));
    t.client.push((0..1_000).map(of).collect()).await.unwrap();
    let site = Site::new(&t.client, DashboardOptions::default());
    let zipped = [("accept-encoding", "gzip, br")];
    let plain = site.get("/").await;
    assert_eq!((plain.header("content-encoding"), plain.header("vary")), ("", "accept-encoding"));
    let loads = tags(&plain.text).into_iter().filter_map(|tag| {
        let link = tag.attribute("src").or_else(|| tag.attribute("href"))?;
        (link.starts_with("/style.css?") || link.starts_with("/live.js?")).then(|| link.to_owned())
    });
    let loads: Vec<String> = loads.collect();
    assert_eq!(loads.len(), 2);
    let mut bytes = 0;
    for path in ["/".to_owned()].into_iter().chain(loads) {
        let answer = site.send("GET", &path, &[], &zipped).await;
        assert_eq!((answer.status, answer.header("content-encoding")), (StatusCode::OK, "gzip"), "{path}");
        bytes += answer.bytes;
    }
    assert!(bytes <= 60_000, "{bytes} bytes");
    let other = [zipped[0], ("sec-fetch-site", "cross-site")];
    assert_eq!(
        site.headers("/", &other).await.get("content-encoding"),
        None,
        "its length tells what is in it"
    );
    assert_eq!(
        site.headers("/events", &zipped).await.get("content-encoding"),
        None,
        "its parts must not wait"
    );
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_said_with_what_to_try() {
    let t = TestQueue::new();
    let store = FaultyStore::new(Arc::clone(t.client.store()), |_| Fault::Before);
    let site = Site::new(&Client::new(Arc::new(store)), DashboardOptions::default());
    for page in PAGES {
        let answer = site.get(&site.path(page)).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{page}");
        assert!(answer.text.contains("Store unavailable") && answer.text.contains("<nav"), "{page}");
    }
}

#[tokio::test]
async fn what_is_not_there_has_a_page_in_the_same_frame() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    let unknown = t.client.make_id();
    for path in ["/nothing", "/jobs/soon", "/queues/none", "/queues/%ff", &format!("/jobs/{unknown}")] {
        let answer = site.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert!(answer.text.contains("<nav") && answer.text.contains("not found"), "{path}: {}", answer.text);
    }
    assert_eq!(site.get("/jobs/act").await.status, StatusCode::METHOD_NOT_ALLOWED);
}

// ── actions ──

/// The value of a job's box in the list.
async fn picked(site: &Site, id: JobId) -> String {
    let text = site.get(&format!("/jobs?filter=id%3A{id}")).await.text;
    let boxes = tags(&text);
    let picked = boxes.iter().find(|tag| tag.attribute("name") == Some("job")).unwrap();
    picked.attribute("value").unwrap().to_owned()
}

/// Presses a button on a job: first on its page, then on the page that asks for confirmation.
async fn press(site: &Site, id: JobId, action: &str, more: &[(&str, &str)]) -> String {
    let picked = picked(site, id).await;
    let mut fields = vec![("action", action), ("job", picked.as_str()), ("from", "job")];
    fields.extend(more);
    let asked = site.post("/jobs/confirm", &fields).await;
    assert_eq!(asked.status, StatusCode::OK, "{}", asked.text);
    let form = forms(&asked.text).into_iter().find(|form| form.action == "/jobs/act").unwrap();
    let Form { mut fields, .. } = form;
    fields.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let pairs: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let done = site.post("/jobs/act", &pairs).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    let shown = site.get(&done.location).await;
    assert_eq!(shown.status, StatusCode::OK, "{}", done.location);
    unescape(&shown.text)
}

#[tokio::test]
async fn each_action_does_what_it_says() {
    for t in stores().await {
        let site = Site::new(&t.client, DashboardOptions::default());
        let later = |t: &TestQueue| {
            let mut of = job(&t.client, "k", "q", Payload::json("1"));
            of.run_at = When::In(Duration::from_hours(1));
            of
        };
        let now = t.client.store().now().await.unwrap();
        let id = t.client.push(vec![later(&t)]).await.unwrap()[0].id().unwrap();
        let get = async |id| t.client.get(id).await.unwrap();
        let text = press(&site, id, "run-now", &[]).await;
        assert!(text.contains("Made due now: 1 job."), "{text}");
        assert_eq!(get(id).await.unwrap().run_at, now);
        press(&site, id, "reschedule", &[("delay", "1h30m")]).await;
        assert_eq!(get(id).await.unwrap().run_at, now.after(Duration::from_mins(90)));
        press(&site, id, "reschedule", &[("at", "2027-01-02T03:04")]).await;
        assert_eq!(get(id).await.unwrap().run_at.as_ms(), 1_798_859_040_000);
        press(&site, id, "reprioritise", &[("priority", "low")]).await;
        assert_eq!(get(id).await.unwrap().priority, Priority::Low);
        let text = press(&site, id, "cancel", &[("reason", "wrong list")]).await;
        let cancelled = get(id).await.unwrap();
        assert_eq!((cancelled.state, cancelled.reason.as_deref()), (State::Cancelled, Some("wrong list")));
        assert!(text.contains("The job was cancelled: wrong list"), "{text}");
        press(&site, id, "retry", &[]).await;
        assert_eq!(get(id).await.unwrap().state, State::Waiting);
        let text = press(&site, id, "delete", &[]).await;
        assert!(text.contains("Deleted: 1 job.") && get(id).await.is_none(), "{text}");
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_running_job_is_asked_to_stop() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    let id =
        t.client.push(vec![job(&t.client, "k", "q", Payload::json("1"))]).await.unwrap()[0].id().unwrap();
    reserve(&t.client, "q", 1).await;
    let text = press(&site, id, "cancel", &[]).await;
    assert!(text.contains("A cancel was requested for 1 running job"), "{text}");
    assert!(t.client.get(id).await.unwrap().unwrap().cancel_requested);
}

#[tokio::test]
async fn a_job_that_has_moved_on_is_left_alone() {
    for t in stores().await {
        let site = Site::new(&t.client, DashboardOptions::default());
        let push = async || {
            t.client.push(vec![job(&t.client, "k", "q", Payload::json("1"))]).await.unwrap()[0].id().unwrap()
        };
        let (started, edited, gone, same) = (push().await, push().await, push().await, push().await);
        let mut fields = vec![("action".to_owned(), "delete".to_owned())];
        for id in [started, edited, gone, same] {
            fields.push(("job".to_owned(), picked(&site, id).await));
        }
        t.client.edit(edited, Payload::json("2")).await.unwrap();
        t.client.delete(gone).await.unwrap();
        t.client.cancel(started).await.unwrap();
        let pairs: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let done = site.post("/jobs/act", &pairs).await;
        let text = unescape(&site.get(&done.location).await.text);
        for part in ["Deleted: 1 job.", "2 jobs changed after this page was loaded", "1 job does not exist"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(t.client.get(started).await.unwrap().unwrap().state, State::Cancelled);
        assert_eq!(t.client.get(edited).await.unwrap().unwrap().payload.bytes, b"2");
        assert!(t.client.get(same).await.unwrap().is_none());
        t.destroy().await.unwrap();
    }
}

/// Complaint 12: a retry that meets a unique key is explained.
#[tokio::test]
async fn a_retry_whose_unique_key_is_taken_is_explained() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    let with_key = || {
        let mut of = job(&t.client, "k", "q", Payload::json("1"));
        of.unique = Some(Unique::key("u"));
        of
    };
    let first = t.client.push(vec![with_key()]).await.unwrap()[0].id().unwrap();
    assert_eq!(t.client.cancel(first).await.unwrap(), Cancelled::Done);
    let holder = t.client.push(vec![with_key()]).await.unwrap()[0].id().unwrap();
    let text = press(&site, first, "retry", &[]).await;
    assert!(text.contains("another job holds the unique key now"), "{text}");
    assert!(links(&text).contains(&format!("/jobs/{holder}")), "{text}");
}

#[tokio::test]
async fn what_a_form_cannot_mean_is_refused_and_changes_nothing() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, DashboardOptions::default());
    let id =
        t.client.push(vec![job(&t.client, "k", "q", Payload::json("1"))]).await.unwrap()[0].id().unwrap();
    let picked = picked(&site, id).await;
    let job = ("job", picked.as_str());
    for fields in [
        vec![("action", "reschedule"), ("delay", "soon"), job],
        vec![("action", "reschedule"), job],
        vec![("action", "reschedule"), ("delay", "1h"), ("at", "2027-01-02T03:04"), job],
        vec![("action", "reprioritise"), ("priority", "urgent"), job],
        vec![("action", "explode"), job],
        vec![("action", "delete"), ("job", "nonsense")],
    ] {
        let answer = site.post("/jobs/act", &fields).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{fields:?}: {}", answer.text);
    }
    let mut many = vec![job; 1_001];
    many.push(("action", "delete"));
    assert_eq!(site.post("/jobs/act", &many).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let long = "x".repeat(70_000);
    assert_eq!(site.post("/jobs/act", &[("x", &long)]).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let none = site.post("/jobs/confirm", &[("action", "delete")]).await;
    assert!(site.get(&none.location).await.text.contains("No job was selected"));
    assert_eq!(t.client.get(id).await.unwrap().unwrap().version, 1);
}

#[tokio::test]
async fn a_queue_is_paused_resumed_and_purged() {
    for t in stores().await {
        let site = Site::new(&t.client, DashboardOptions::default());
        let name = "a/b c?&";
        let jobs = (0..3).map(|_| job(&t.client, "k", name, Payload::json("1"))).collect();
        t.client.push(jobs).await.unwrap();
        let listed = site.get("/queues").await.text;
        let link = links(&listed).into_iter().find(|link| link.starts_with("/queues/")).unwrap();
        let paused = site.post(&format!("{link}/pause"), &[("by", "ana"), ("reason", "moved")]).await;
        let text = site.get(&paused.location).await.text;
        assert!(text.contains("The queue is paused") && text.contains("by ana"), "{text}");
        let pause = t.client.queue(name).show().await.unwrap().unwrap().settings.paused.unwrap();
        assert_eq!((pause.by.as_str(), pause.reason.as_str()), ("ana", "moved"));
        site.post(&format!("{link}/resume"), &[]).await;
        assert!(t.client.queue(name).show().await.unwrap().unwrap().settings.paused.is_none());
        let refused = site.post(&format!("{link}/purge"), &[("name", "a/b")]).await;
        assert!(site.get(&refused.location).await.text.contains("Nothing was deleted"));
        assert_eq!(t.client.count(None).await.unwrap().waiting, 3);
        let purged = site.post(&format!("{link}/purge"), &purge_form(name)).await;
        assert!(site.get(&purged.location).await.text.contains("Deleted 3 waiting jobs."));
        assert_eq!(t.client.count(None).await.unwrap().waiting, 0);
        t.destroy().await.unwrap();
    }
}

// ── refusals ──

/// The routes that change something, as the router lists them.
fn post_routes() -> Vec<String> {
    let router = include_str!("../src/dashboard.rs");
    let routes = router.lines().filter(|line| line.contains("post("));
    let routes = routes.filter_map(|line| line.split_once(".route(\"")?.1.split('"').next());
    let (id, worker) = ("0199f2f1-6a3b-7c44-9d21-0b3d5c1e9f04", "00000000c0ffee00");
    let routes = routes.map(|route| route.replace("/workers/{id}", &format!("/workers/{worker}")));
    routes.map(|route| route.replace("{name}", "mail").replace("{id}", id)).collect()
}

/// Complaint 7: read-only really is.
#[tokio::test]
async fn a_read_only_dashboard_refuses_every_change_and_shows_no_button() {
    let t = TestQueue::new();
    fill(&t, "plain").await;
    let before = t.client.list(&Site::all()).await.unwrap();
    let site = Site::new(&t.client, read_only());
    let routes = post_routes();
    assert_eq!(routes.len(), 18, "{routes:?}");
    let id = before.jobs[0].id;
    let open = Site::new(&t.client, DashboardOptions::default());
    let picked = picked(&open, id).await;
    for route in routes {
        let fields = [("action", "delete"), ("job", picked.as_str()), ("name", "mail")];
        let answer = site.post(&route, &fields).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{route}");
        assert!(answer.text.contains("read-only"), "{route}");
    }
    assert_eq!(t.client.list(&Site::all()).await.unwrap().jobs, before.jobs);
    for (path, text) in crawl(&site, |_| true).await {
        for form in forms(&text) {
            assert!(form.method == "get" || form.buttons == 0, "{path}: {form:?}");
        }
    }
}

#[tokio::test]
async fn a_change_is_taken_from_a_page_of_the_same_origin_only() {
    let t = TestQueue::new();
    t.client.push(vec![job(&t.client, "k", "mail", Payload::json("1"))]).await.unwrap();
    let site = Site::new(&t.client, DashboardOptions::default());
    let host = ("host", "ops.example.com");
    let cases: [(&[(&str, &str)], bool); 9] = [
        (&[("sec-fetch-site", "same-origin")], true),
        (&[("sec-fetch-site", "none")], true),
        (&[("sec-fetch-site", "cross-site")], false),
        (&[("sec-fetch-site", "same-site")], false),
        (&[("sec-fetch-site", "cross-site"), ("origin", "https://ops.example.com"), host], false),
        (&[("origin", "https://ops.example.com"), host], true),
        (&[("origin", "https://evil.example.com"), host], false),
        (&[("origin", "null"), host], false),
        (&[host], false),
    ];
    for route in post_routes() {
        for (headers, is_taken) in cases {
            let answer = site.send("POST", &route, &[], headers).await;
            assert_eq!(answer.status != StatusCode::FORBIDDEN, is_taken, "{route} {headers:?}");
        }
    }
}

/// Complaint 6: a strict content security policy.
#[tokio::test]
async fn every_answer_has_the_headers_that_keep_a_browser_safe() {
    let t = TestQueue::new();
    fill(&t, "plain").await;
    let site = Site::new(&t.client, DashboardOptions::default());
    let mut answers = Vec::new();
    for page in PAGES {
        answers.push(site.get(&site.path(page)).await);
    }
    answers.push(site.get("/nothing").await);
    answers.push(site.post("/jobs/act", &[("action", "delete")]).await);
    answers.push(site.send("POST", "/jobs/act", &[], &[]).await);
    let css = links(&answers[0].text).into_iter().find(|link| link.contains("style.css")).unwrap();
    let style = site.get(&css).await;
    assert!(style.header("cache-control").contains("immutable"));
    assert_eq!(site.get("/style.css?v=0").await.header("cache-control"), "no-store");
    for answer in &answers {
        assert_eq!(answer.header("cache-control"), "no-store");
    }
    answers.push(style);
    for answer in &answers {
        let csp = answer.header("content-security-policy");
        assert!(
            csp.starts_with(
                "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'"
            )
        );
        assert!(csp.ends_with("base-uri 'none'; frame-ancestors 'none'") && !csp.contains("unsafe"));
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "same-origin");
    }
}

/// Texts that break out of an element, an attribute, a comment or a template, if they are not escaped.
const TEXTS: [&str; 40] = [
    "<script>alert(1)</script>",
    "\"><script>alert(1)</script>",
    "'><script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg/onload=alert(1)>",
    "<body onload=alert(1)>",
    "<iframe src=javascript:alert(1)>",
    "<a href=\"javascript:alert(1)\">x</a>",
    "<details open ontoggle=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "\" autofocus onfocus=\"alert(1)",
    "' autofocus onfocus='alert(1)",
    "\" onmouseover=\"alert(1)",
    "'-alert(1)-'",
    "\"-alert(1)-\"",
    "--><script>alert(1)</script>",
    "<!--<img src=\"--><img src=x onerror=alert(1)//\">",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "<style>*{background:url(//evil)}</style>",
    "<link rel=stylesheet href=//evil>",
    "<base href=//evil/>",
    "<meta http-equiv=refresh content=\"0;url=//evil\">",
    "<form action=//evil><button>x</button></form>",
    "<math><mtext></table><mglyph><style><img src=x onerror=alert(1)>",
    "<template><script>alert(1)</script></template>",
    "<object data=javascript:alert(1)>",
    "<video><source onerror=alert(1)>",
    "<marquee onstart=alert(1)>",
    "{{ 7 * 7 }}<b>",
    "{% raw %}<b>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;<b>",
    "<ScRiPt>alert(1)</sCrIpT>",
    "<<script>alert(1)//<</script>",
    "\u{202e}<script>alert(1)</script>",
];

/// The attributes that templates use.
const ATTRIBUTES: [&str; 58] = [
    "action",
    "aria-current",
    "aria-describedby",
    "aria-hidden",
    "aria-invalid",
    "aria-label",
    "aria-labelledby",
    "autocapitalize",
    "autocomplete",
    "charset",
    "class",
    "content",
    "d",
    "data-live",
    "datetime",
    "for",
    "height",
    "href",
    "id",
    "lang",
    "max",
    "maxlength",
    "method",
    "name",
    "open",
    "placeholder",
    "preserveAspectRatio",
    "rel",
    "required",
    "role",
    "rows",
    "rx",
    "scope",
    "selected",
    "size",
    "spellcheck",
    "src",
    "tabindex",
    "title",
    "type",
    "value",
    "viewBox",
    "width",
    "x",
    "y",
    "html",
    "colspan",
    "rowspan",
    "checked",
    "disabled",
    "readonly",
    "min",
    "step",
    "list",
    "pattern",
    "cite",
    "dir",
    "alt",
];

fn check_page(path: &str, page: &str) {
    for tag in tags(page) {
        let is_own =
            tag.attributes.iter().any(|(name, value)| name == "src" && value.starts_with("/live.js?v="));
        if tag.name == "script" && tag.attributes.len() == 1 && is_own {
            continue;
        }
        assert!(
            !["script", "style", "iframe", "img", "base", "object", "b"].contains(&tag.name.as_str()),
            "{path}: <{}>",
            tag.name
        );
        for (name, _) in &tag.attributes {
            assert!(ATTRIBUTES.contains(&name.as_str()), "{path}: <{} {name}>", tag.name);
        }
    }
    for text in TEXTS {
        assert!(!page.contains(text), "{path}: {text}");
    }
}

/// Runs a job for each text, whose error is the text, so that recent activity has it.
async fn run_all(client: &Client) {
    let ran = |text: &&str| {
        let mut of = job(client, text, "ran", Payload::json("1"));
        of.group = Some((*text).to_owned());
        of
    };
    client.push(TEXTS.iter().map(ran).collect()).await.unwrap();
    let fail = async |job: JobRecord, _: Ctx| Outcome::Dead(job.kind);
    let (end, worker) = (CancellationToken::new(), Worker::new(client).queue("ran").handle_raw(fail));
    let running = tokio::spawn(worker.run_until(end.clone()));
    while client.count(Some("ran")).await.unwrap().dead < TEXTS.len() as u64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    end.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn no_text_of_a_job_becomes_a_part_of_a_page() {
    let t = TestQueue::new();
    for text in TEXTS {
        fill(&t, text).await;
    }
    let nightly = Cron::new("0 3 * * *").unwrap();
    for text in TEXTS {
        let of = job(&t.client, text, "q", Payload::json("1"));
        let schedule = Schedule::new(nightly.clone(), of).unwrap();
        // A name has no control characters; these have none.
        t.client.schedule(text).put(schedule).await.unwrap();
        t.client.schedule(text).pause(text, text).await.unwrap();
    }
    run_all(&t.client).await;
    let site = Site::new(&t.client, DashboardOptions::default());
    assert!(site.get("/").await.text.contains("<caption>Errors</caption>"));
    // There are very many pages with filters, and each shows what another one shows.
    let pages = crawl(&site, |link| !link.contains("filter=")).await;
    assert!(300 < pages.len(), "{} pages", pages.len());
    let all: String = pages.iter().map(|(_, page)| unescape(page)).collect();
    for text in TEXTS {
        assert!(all.contains(text), "{text} is shown nowhere");
    }
    for (path, page) in &pages {
        check_page(path, page);
    }
    for text in TEXTS {
        let query = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(
                ["filter", "cursor", "did", "other", "done", "after", "for", "v"].map(|name| (name, text)),
            )
            .finish();
        for page in PAGES {
            let path = format!("{}?{query}", site.path(page));
            check_page(&path, &site.get(&path).await.text);
        }
        let fields = [
            ("action", "delete"),
            ("filter", text),
            ("cursor", text),
            ("name", text),
            ("job", text),
            ("payload", text),
            ("copy", text),
            ("generation", text),
            ("by", text),
        ];
        for route in post_routes() {
            check_page(&route, &site.post(&route, &fields).await.text);
        }
        let name: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
        for path in
            [format!("/queues/{name}"), format!("/schedules/{name}"), format!("/queues/{name}/settings")]
        {
            check_page(&path, &site.get(&path).await.text);
        }
    }
    // A form that is refused is shown again with what was typed.
    let edit = pages.iter().map(|(path, _)| path).find(|path| path.ends_with("/edit")).unwrap();
    for path in [edit.as_str(), "/queues/ran/settings"] {
        let form = forms(&site.get(path).await.text).into_iter().find(|form| form.action == path).unwrap();
        // One of them is a string of JSON, which can be saved.
        for text in TEXTS.iter().copied().filter(|text| serde_json::from_str::<&str>(text).is_err()) {
            let pairs: Vec<(&str, &str)> = form
                .fields
                .iter()
                .map(|(name, value)| {
                    let is_typed = !name.starts_with("was.") && name != "job";
                    (name.as_str(), if is_typed { text } else { value.as_str() })
                })
                .collect();
            let answer = site.post(path, &pairs).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
            assert!(unescape(&answer.text).contains(text), "{path}: {text}");
            check_page(path, &answer.text);
        }
    }
}
