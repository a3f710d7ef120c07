//! Acting on all jobs that match a filter: the preview, the operation, and what is refused.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::ConnectInfo,
    http::{Request, StatusCode},
};
use punctual::{
    CancellationToken, Client, JobId, NewJob, Payload, State, Unique, When,
    testing::{Fault, FaultyStore, TestQueue},
};
use punctual_server::{
    DashboardOptions, Server,
    token::{self, NewToken, Payloads, Role},
};
use tower::ServiceExt as _;

use super::{
    html::{forms, unescape},
    site::{Answer, Site, job, reserve, stores},
};

const PREVIEW: &str = "/jobs/matching";
const ORDER: &str = "/operations";

type Pairs = Vec<(String, String)>;

fn site(client: &Client) -> Site {
    Site::new(client, DashboardOptions::default())
}

async fn push(t: &TestQueue, queue: &str, n: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for batch in (0..n).collect::<Vec<_>>().chunks(1_000) {
        let jobs = batch.iter().map(|_| job(&t.client, "k", queue, Payload::json("1"))).collect();
        ids.extend(t.client.push(jobs).await.unwrap().iter().map(|pushed| pushed.id().unwrap()));
    }
    ids
}

async fn post(site: &Site, path: &str, pairs: &[(String, String)]) -> Answer {
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    site.post(path, &pairs).await
}

/// The fields of the form that gives the order, if a page has one.
fn next(page: &str) -> Option<Pairs> {
    forms(page).into_iter().find(|form| form.action == ORDER).map(|form| form.fields)
}

/// Asks for confirmation, and returns the page and its form with a reason.
async fn ask(site: &Site, action: &str, filter: &str) -> (String, Pairs) {
    let page = site.post(PREVIEW, &[("action", action), ("filter", filter)]).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    let mut form = next(&page.text).unwrap_or_default();
    if action == "cancel" {
        form.push(("reason".to_owned(), "wrong <list>".to_owned()));
    }
    (unescape(&page.text), form)
}

/// Gives an order, waits for its end, and returns its last page.
async fn finish(site: &Site, form: &Pairs) -> String {
    let answer = post(site, ORDER, form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    ended(site, &answer.location).await
}

/// Waits for the end of an operation, and returns its last page.
async fn ended(site: &Site, place: &str) -> String {
    let patience = async {
        loop {
            let page = site.get(place).await;
            assert_eq!(page.status, StatusCode::OK, "{}", page.text);
            if !page.text.contains("data-every") {
                return unescape(&page.text);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), patience).await.expect("the operation never ends")
}

async fn state(t: &TestQueue, id: JobId) -> Option<State> {
    t.client.get(id).await.unwrap().map(|job| job.state)
}

#[tokio::test]
async fn the_preview_counts_shows_and_changes_nothing() {
    for t in stores().await {
        push(&t, "mail", 7).await;
        push(&t, "sms", 1).await;
        let before = t.client.list(&Site::all()).await.unwrap().jobs;
        let site = site(&t.client);
        let listed = site.get("/jobs?filter=queue%3Amail").await.text;
        let form = forms(&listed).into_iter().find(|form| form.action == PREVIEW).unwrap();
        assert_eq!((form.fields.len(), form.buttons), (1, 4));
        let (page, form) = ask(&site, "cancel", "queue:mail").await;
        for part in [
            "Cancel 7 matching jobs?",
            "queue is mail",
            "<strong>7</strong> waiting",
            "jobs that match and are done or dead or cancelled",
            "name=\"reason\" maxlength=\"1024\" required",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches("<tr>").count(), 1 + 5);
        assert!(form.iter().any(|(name, value)| name == "planned" && value == "7"));
        let (page, form) = ask(&site, "retry", "state:dead").await;
        assert!(page.contains("No job to change") && form.is_empty(), "{page}");
        assert_eq!(t.client.list(&Site::all()).await.unwrap().jobs, before);
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_page_offers_what_its_filter_allows() {
    let t = TestQueue::new();
    push(&t, "mail", 2).await;
    reserve(&t.client, "mail", 1).await;
    push(&t, "mail", 1).await;
    let site = site(&t.client);
    for (filter, buttons) in [("", 0), ("kind%3Ak", 4), ("state%3Awaiting", 3), ("state%3Arunning", 1)] {
        let page = site.get(&format!("/jobs?filter={filter}")).await.text;
        let form = forms(&page).into_iter().find(|form| form.action == PREVIEW);
        assert_eq!(form.map_or(0, |form| form.buttons), buttons, "{filter}");
    }
}

/// Complaint 2: an action is for everything that matches, not for a page.
#[tokio::test]
async fn all_that_match_are_handled_and_later_jobs_are_not() {
    for t in stores().await {
        let (mail, sms) = (push(&t, "mail", 2_300).await, push(&t, "sms", 1).await);
        let site = site(&t.client);
        let (_, form) = ask(&site, "cancel", "queue:mail").await;
        t.clock.advance(Duration::from_millis(1));
        let late = push(&t, "mail", 3).await;
        let end = finish(&site, &form).await;
        assert!(end.contains("all that match: done") && end.contains("<dd>2,300 jobs</dd>"), "{end}");
        assert!(end.contains("<dt>Left</dt><dd>0</dd>") && end.contains("wrong <list>"), "{end}");
        assert_eq!(t.client.count(None).await.unwrap().cancelled, 2_300);
        for id in [sms[0], late[0], late[2]] {
            assert_eq!(state(&t, id).await, Some(State::Waiting));
        }
        let cancelled = t.client.get(mail[0]).await.unwrap().unwrap();
        assert_eq!(cancelled.reason.as_deref(), Some("wrong <list>"));
        let list = unescape(&site.get("/operations").await.text);
        assert!(list.contains("queue:mail") && list.contains(">2,300</td>"), "{list}");
        t.destroy().await.unwrap();
    }
}

/// The page of an operation follows it without JavaScript, and its button cancels it.
#[tokio::test(start_paused = true)]
async fn an_operation_can_be_watched_and_cancelled_without_a_script() {
    let t = TestQueue::new();
    push(&t, "mail", 600).await;
    // Actions fail until the operation is cancelled, so that it cannot end before.
    let store = FaultyStore::new(Arc::clone(t.client.store()), |verb| {
        if verb == "act" { Fault::Before } else { Fault::Pass }
    });
    let site = site(&Client::new(Arc::new(store)));
    let (_, form) = ask(&site, "delete", "queue:mail").await;
    let place = post(&site, ORDER, &form).await.location;
    let page = site.get(&place).await.text;
    assert!(page.contains("<noscript><meta http-equiv=\"refresh\" content=\"5\">"), "{page}");
    assert!(page.contains("all that match: running") && page.contains("<progress"), "{page}");
    let button = forms(&page).into_iter().find(|form| form.action == format!("{place}/cancel")).unwrap();
    let answer = post(&site, &button.action, &button.fields).await;
    assert_eq!((answer.status, answer.location.as_str()), (StatusCode::SEE_OTHER, place.as_str()));
    let end = ended(&site, &place).await;
    assert!(end.contains("all that match: cancelled") && end.contains("by dashboard"), "{end}");
    assert!(!end.contains("http-equiv=\"refresh\"") && !end.contains("/cancel\""), "{end}");
    assert_eq!(t.client.count(None).await.unwrap().total(), 600);
    assert_eq!(site.get("/operations/00000000000000000000").await.status, StatusCode::NOT_FOUND);
    assert_eq!(site.get("/operations/nonsense").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn each_action_reaches_the_states_in_which_it_is_possible() {
    for t in stores().await {
        let site = site(&t.client);
        let running = push(&t, "mail", 2).await;
        reserve(&t.client, "mail", 1).await;
        let waiting = push(&t, "mail", 3).await;
        let (_, form) = ask(&site, "cancel", "queue:mail").await;
        let page = finish(&site, &form).await;
        assert!(page.contains("<dd>3 jobs</dd>") && page.contains("<dd>2 running jobs</dd>"), "{page}");
        assert!(t.client.get(running[0]).await.unwrap().unwrap().cancel_requested);
        let (page, form) = ask(&site, "retry", "queue:mail").await;
        assert!(page.contains("Retry 3 matching jobs?"), "{page}");
        finish(&site, &form).await;
        assert_eq!(state(&t, waiting[0]).await, Some(State::Waiting));
        let (_, form) = ask(&site, "run-now", "queue:mail").await;
        assert!(finish(&site, &form).await.contains("<dd>3 jobs</dd>"));
        let (_, form) = ask(&site, "delete", "queue:mail").await;
        finish(&site, &form).await;
        let counts = t.client.count(None).await.unwrap();
        assert_eq!((counts.total(), counts.running), (2, 2));
        t.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_job_that_has_changed_is_skipped() {
    let t = TestQueue::new();
    let site = site(&t.client);
    let ids = push(&t, "mail", 4).await;
    let (_, form) = ask(&site, "delete", "state:waiting").await;
    t.client.cancel(ids[0]).await.unwrap();
    t.client.delete(ids[1]).await.unwrap();
    let page = finish(&site, &form).await;
    assert!(page.contains("<dt>Done</dt><dd>2 jobs</dd>"), "{page}");
    assert_eq!(state(&t, ids[0]).await, Some(State::Cancelled));

    // A job that ended again after the confirmation is not retried a second time.
    let (_, form) = ask(&site, "retry", "queue:mail").await;
    t.client.retry(ids[0]).await.unwrap();
    t.clock.advance(Duration::from_secs(1));
    t.client.cancel(ids[0]).await.unwrap();
    finish(&site, &form).await;
    assert_eq!(state(&t, ids[0]).await, Some(State::Cancelled));
}

#[tokio::test]
async fn a_retry_whose_unique_key_is_taken_is_counted_as_skipped() {
    let t = TestQueue::new();
    let with_key = || {
        let mut of = job(&t.client, "k", "mail", Payload::json("1"));
        of.unique = Some(Unique::key("u"));
        of
    };
    let first = t.client.push(vec![with_key()]).await.unwrap()[0].id().unwrap();
    t.client.cancel(first).await.unwrap();
    let holder = t.client.push(vec![with_key()]).await.unwrap()[0].id().unwrap();
    let site = site(&t.client);
    let (_, form) = ask(&site, "retry", "queue:mail").await;
    let page = finish(&site, &form).await;
    assert!(page.contains("<dt>Skipped</dt><dd>1 job</dd>") && page.contains("unique key taken"), "{page}");
    assert!(page.contains(&format!("/jobs/{holder}")), "{page}");
}

/// Two browsers, or a button that is pressed twice.
#[tokio::test]
async fn a_form_that_is_sent_again_acts_on_each_job_once() {
    for t in stores().await {
        let site = site(&t.client);
        push(&t, "mail", 600).await;
        let (_, form) = ask(&site, "cancel", "queue:mail").await;
        t.clock.advance(Duration::from_millis(1));
        let late = push(&t, "mail", 1).await;
        let (one, two) = tokio::join!(finish(&site, &form), finish(&site, &form));
        let done = |page: &str| {
            let text = page.split("<dt>Done</dt><dd>").nth(1).unwrap().split(' ').next().unwrap();
            text.parse::<u64>().unwrap()
        };
        assert_eq!(done(&one) + done(&two), 600, "{one} {two}");
        assert_eq!(t.client.count(None).await.unwrap().cancelled, 600);
        assert_eq!(state(&t, late[0]).await, Some(State::Waiting));
        t.destroy().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_preview_counts_and_reads_up_to_a_bound() {
    let t = TestQueue::new();
    // Not due: the store in memory takes long to find whether a due job is blocked.
    let run_at = When::In(Duration::from_hours(1));
    for n in [vec![1_000; 10], vec![50]].concat() {
        let later = |_| NewJob { run_at, ..job(&t.client, "k", "mail", Payload::json("1")) };
        t.client.push((0..n).map(later).collect()).await.unwrap();
    }
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let store = FaultyStore::new(Arc::clone(t.client.store()), move |verb| {
        counted.fetch_add(u64::from(verb == "list"), Ordering::Relaxed);
        Fault::Pass
    });
    let site = site(&Client::new(Arc::new(store)));
    let (page, form) = ask(&site, "delete", "queue:mail").await;
    assert!(page.contains("Delete 10,000+ matching jobs?") && page.contains("there may be more"), "{page}");
    assert_eq!(calls.swap(0, Ordering::Relaxed), 10);
    let page = finish(&site, &form).await;
    assert!(page.contains("<dd>10,000+</dd>") && page.contains("<dd>10,050 jobs</dd>"), "{page}");
    assert_eq!(t.client.count(None).await.unwrap().total(), 0);
}

#[tokio::test]
async fn what_an_order_cannot_mean_is_refused_and_changes_nothing() {
    let t = TestQueue::new();
    push(&t, "mail", 3).await;
    let before = t.client.list(&Site::all()).await.unwrap().jobs;
    let site = site(&t.client);
    let (_, form) = ask(&site, "cancel", "queue:mail").await;
    let terms = "queue:mail ".repeat(65);
    let long = format!("queue:{}", "x".repeat(5_000));
    let filters = ["", "  ", "kimd:a", "queue:", "error:\"a", "state:soon", "*", "state:done", &terms, &long];
    for (filter, path) in filters.into_iter().flat_map(|filter| [(filter, PREVIEW), (filter, ORDER)]) {
        let fields =
            [("action", "cancel"), ("filter", filter), ("reason", "x"), ("confirmed", "1767225600000")];
        let answer = site.post(path, &fields).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {filter}: {}", answer.text);
    }
    for action in ["", "explode", "reprioritise", "reschedule", "edit", "retry"] {
        let fields = [("action", action), ("filter", "state:waiting"), ("priority", "low"), ("delay", "1h")];
        assert_eq!(site.post(PREVIEW, &fields).await.status, StatusCode::BAD_REQUEST, "{action}");
    }
    let with = |name: &str, value: &str| {
        let mut form = form.clone();
        form.retain(|(key, _)| key != name);
        form.push((name.to_owned(), value.to_owned()));
        form
    };
    for (name, value) in [
        ("reason", ""),
        ("reason", "   "),
        ("confirmed", ""),
        ("confirmed", "0"),
        ("confirmed", "-1"),
        ("confirmed", "1767225600001"),
        ("confirmed", "18446744073709551615"),
    ] {
        let answer = post(&site, ORDER, &with(name, value)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{name}={value}: {}", answer.text);
    }
    assert_eq!(t.client.list(&Site::all()).await.unwrap().jobs, before);
    t.clock.advance(Duration::from_mins(61));
    let late = post(&site, ORDER, &form).await;
    assert!(late.status == StatusCode::BAD_REQUEST && late.text.contains("older than an hour"));
    assert_eq!(t.client.count(None).await.unwrap().cancelled, 0);
    // Sums of a form are words at most.
    let (_, form) = ask(&site, "delete", "queue:mail").await;
    let mut forged = form.clone();
    forged.extend(["done", "moved", "gone"].map(|name| (name.to_owned(), u64::MAX.to_string())));
    assert!(finish(&site, &forged).await.contains("done"));
}

#[tokio::test]
async fn an_order_is_refused_by_a_read_only_dashboard_and_from_another_site() {
    let t = TestQueue::new();
    push(&t, "mail", 3).await;
    let open = site(&t.client);
    let (_, form) = ask(&open, "delete", "queue:mail").await;
    let options = DashboardOptions { read_only: true, ..DashboardOptions::default() };
    let read_only = Site::new(&t.client, options);
    let pairs: Vec<(&str, &str)> = form.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    for path in [PREVIEW, ORDER, "/operations/00000000000000000000/cancel"] {
        assert_eq!(read_only.post(path, &pairs).await.status, StatusCode::FORBIDDEN);
        let foreign = open.send("POST", path, &pairs, &[("sec-fetch-site", "cross-site")]).await;
        assert_eq!(foreign.status, StatusCode::FORBIDDEN);
    }
    assert!(!read_only.get("/jobs?filter=queue%3Amail").await.text.contains("<button name=\"action\""));
    assert_eq!(t.client.count(None).await.unwrap().waiting, 3);
}

/// A server with its gate, and a caller with a token.
struct Gated<'a> {
    router: &'a Router,
    token: String,
}

impl Gated<'_> {
    async fn send(&self, path: &str, fields: &[(&str, &str)]) -> (StatusCode, String) {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = Request::post(path)
            .header("authorization", format!("Bearer {}", self.token))
            .header("sec-fetch-site", "same-origin");
        let mut request = request.body(Body::from(body)).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 4_000))));
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), 1_000_000).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn an_order_needs_the_role_the_queues_and_the_payloads_of_its_filter() {
    let t = TestQueue::new();
    push(&t, "mail", 2).await;
    push(&t, "sms", 2).await;
    let stop = CancellationToken::new();
    let router = Server::new(&t.client).router(&stop);
    let caller = async |role, queues: Option<&str>, payloads| {
        let queues = queues.map(|queue| vec![queue.to_owned()]);
        let new = NewToken { queues, payloads, ..NewToken::new("ana", role) };
        let made = token::make(&t.client, &new, token::random().unwrap()).await.unwrap();
        Gated { router: &router, token: made.secret.expose().to_owned() }
    };
    let read = caller(Role::Read, None, Payloads::Shown).await;
    let operate = caller(Role::Operate, None, Payloads::Shown).await;
    let mail = caller(Role::Operate, Some("mail"), Payloads::Shown).await;
    let mail_read = caller(Role::Read, Some("mail"), Payloads::Shown).await;
    let blind = caller(Role::Operate, None, Payloads::Hidden).await;
    let nobody = Gated { router: &router, token: "pt_nothing".to_owned() };
    let confirmed = t.client.store().now().await.unwrap().as_ms().to_string();
    let (yes, no) = (StatusCode::OK, StatusCode::FORBIDDEN);
    for (caller, filter, expected) in [
        (&read, "queue:mail", no),
        (&mail_read, "queue:mail", no),
        (&nobody, "queue:mail", StatusCode::UNAUTHORIZED),
        (&mail, "queue:sms", no),
        (&mail, "queue:mail,sms", no),
        (&mail, "queue:mail*", no),
        (&mail, "-queue:sms", no),
        (&mail, "state:waiting", no),
        (&mail, "queue:sms queue:mail", no),
        (&mail, "queue:sms queue:mail,sms", no),
        (&blind, "payload.a:1", no),
        (&blind, "queue:mail -payload.a:1", no),
        (&operate, "queue:sms payload.a:1", yes),
        (&blind, "queue:none", yes),
        (&mail, "queue:mail state:waiting", yes),
    ] {
        let fields = [("action", "delete"), ("filter", filter), ("confirmed", confirmed.as_str())];
        for path in [PREVIEW, ORDER] {
            let (status, text) = caller.send(path, &fields).await;
            let allowed = if path == ORDER { StatusCode::SEE_OTHER } else { yes };
            let expected = if expected == yes { allowed } else { expected };
            assert_eq!(status, expected, "{path} {filter}: {text}");
            assert!(expected == allowed || !text.contains("<strong>"), "{path} {filter}: {text}");
        }
    }
    let gone = async {
        while t.client.count(Some("mail")).await.unwrap().total() != 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), gone).await.expect("the jobs stay");
    assert_eq!(t.client.count(Some("sms")).await.unwrap().total(), 2);
}
