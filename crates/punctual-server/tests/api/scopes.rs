//! What a token for one queue reads and changes of another one: each route, and each field of it that names a queue, an id, a key, a worker or a
//! schedule, against a table that is written by hand.
//!
//! Everything of the other queue has a name that begins with `zz-`. No answer may have such a name, unless the request itself has it, and nothing
//! of that queue may change. A route that is not in the table fails the test. The door of the SQS protocol has its own (`sqs/rights.rs`).

use std::{collections::BTreeSet, fs, path::Path};

use axum::{body::Body, http::Request};
use punctual::{
    JobId, NewJob, Payload, Unique, When,
    job::Filter,
    store::{CallId, DocOp, Lease, List, Precondition, QueueOp, QueueRequest, Reserve, UniqueKey},
};
use serde_json::{Value, json};

use crate::site::{CALLS, Site};

/// The queue that the token is not for.
const OTHER: &str = "zz-queue";
/// Names of its things.
const NAMES: [&str; 10] = [
    OTHER,
    "zz-kind",
    "zz-payload",
    "zz-header",
    "zz-key",
    "zz-group",
    "zz-worker",
    "zz-host",
    "zz-schedule",
    "zz-topic",
];
/// A worker of the other queue, and one that serves both.
const ITS_WORKER: &str = "00000000000000f1";
const BOTH_WORKER: &str = "00000000000000f2";

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Status 403.
    Refused,
    /// Status 404, or an answer of JSON which says that there is no such thing.
    NotThere,
    /// Status 409, or a result with the status `conflict`.
    Conflict,
    /// It is answered, with nothing of the other queue.
    Answered,
    /// A page of the dashboard sends on to the pages of the token's queue.
    SentOn,
}
use Fate::{Answered, Conflict, NotThere, Refused, SentOn};

/// A request: the route, the field that names something of the other queue, the path, the body, and what becomes of it. Bodies of pages are forms.
struct Row(&'static str, &'static str, String, String, Fate);

/// The things of the other queue, and some of the token's own.
struct Things {
    waiting: JobId,
    running: Lease,
    /// Follows from public names; no job has it yet.
    derived: JobId,
    operation: &'static str,
    own: JobId,
}

async fn put(site: &Site, key: &str, value: Value) {
    let value = value.to_string().into_bytes();
    let put = DocOp::Put { key: key.to_owned(), precondition: Precondition::Always, value };
    site.client().store().doc(&put).await.unwrap();
}

async fn things(site: &Site) -> Things {
    let (client, store) = (site.client(), site.client().store());
    let job = || {
        let mut job = NewJob::new(client.make_id(), "zz-kind", OTHER, Payload::json(r#""zz-payload""#));
        job.headers = [("zz-header".to_owned(), "1".to_owned())].into();
        job
    };
    store.enqueue(CallId { instance: 91, number: 1 }, &[job()]).await.unwrap();
    let want = Reserve {
        call: CallId { instance: 91, number: 1 },
        worker: "zz-worker".into(),
        queues: vec![QueueRequest { queue: OTHER.into(), share: 0, at_most: 1 }],
        n: 1,
        lease: None,
        company: false,
    };
    let running = store.reserve(&want).await.unwrap().jobs[0].lease;
    let group = Some("zz-group".to_owned());
    let later = When::In(std::time::Duration::from_hours(1));
    let waiting = NewJob { unique: Some(Unique::key("zz-key")), group, run_at: later, ..job() };
    let waiting =
        store.enqueue(CallId { instance: 91, number: 2 }, &[waiting]).await.unwrap()[0].id().unwrap();
    let now = store.now().await.unwrap();
    let worker = |queues: &[&str]| {
        let queues: Vec<Value> = queues.iter().map(|queue| json!({"name": queue})).collect();
        let forwards = json!({"to": "nats://zz-host:4222", "sent": 1, "failed": 1, "error": "zz-payload"});
        json!({"name": "zz-worker", "host": "zz-host", "pid": 4711, "version": "1", "seen_ms": now, "queues": queues,
            "kinds": ["zz-kind"], "slots": 5, "busy": 1, "forwards": forwards})
    };
    put(site, &format!("worker/{ITS_WORKER}"), worker(&[OTHER])).await;
    put(site, &format!("worker/{BOTH_WORKER}"), worker(&["mail", OTHER])).await;
    let job = json!({"kind": "zz-kind", "queue": OTHER, "payload": "\"zz-payload\"", "content_type": "application/json",
        "headers": {"zz-header": "1"}});
    let ticks = json!({"cron": "0 3 * * *", "tz": "UTC", "misfire": "skip"});
    let paused = json!({"since_ms": 5, "by": "ana", "reason": "moved"});
    put(site, "schedule/zz-schedule", json!({"ticks": ticks, "job": job, "paused": paused})).await;
    put(site, "topic/zz-topic", json!({"queues": [OTHER]})).await;
    put(site, "zz-key", json!("zz-payload")).await;
    let derived = JobId::derived_of_kind("zz-kind", OTHER, None, "welcome:43");
    Things { waiting, running, derived, operation: site.operation(OTHER).await, own: site.mail.waiting }
}

/// The table. `{id}` and such in a route are not replaced.
fn rows(of: &Things) -> Vec<Row> {
    let Things { waiting, running, derived, operation, own } = of;
    let key = UniqueKey {
        kind: Some("zz-kind".into()),
        queue: OTHER.into(),
        group: Some("zz-group".into()),
        concurrency_key: None,
        key: "zz-key".into(),
    };
    let key = serde_json::to_value(key).unwrap();
    let lease = json!({"id": running.job, "fence": running.fence});
    let settlement = json!({"id": running.job, "fence": running.fence, "verdict": "ack"});
    let retry = json!({"id": running.job, "fence": running.fence, "verdict": "retry", "error": "x"});
    let picked = format!("{waiting}.waiting.1.{OTHER}");
    let as_own = format!("{waiting}.waiting.1.mail");
    let form = |fields: &[(&str, &str)]| {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
    };
    let act = |job: &str| form(&[("job", job), ("action", "cancel"), ("from", "jobs")]);
    let matching = form(&[("action", "cancel"), ("filter", "queue:zz-queue"), ("reason", "r")]);
    let new = |fields: Value| {
        let mut job = json!({"kind": "k", "queue": "mail"});
        job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        job
    };
    let enqueue = |job: Value| json!({"jobs": [job]});
    let worker = |queues: &[&str]| {
        let queues: Vec<Value> = queues.iter().map(|queue| json!({"name": queue})).collect();
        json!({"name": "w", "queues": queues}).to_string()
    };
    let fresh = |queues: &[&str]| json!({"put": {"key": "worker/00000000000000f9", "precondition": "if_absent", "value": worker(queues)}});
    let over = |id: &str| json!({"put": {"key": format!("worker/{id}"), "precondition": {"if_version": 1}, "value": worker(&["mail"])}});
    let get = |key: &str| json!({"get": {"key": key}});
    let always = |key: &str| json!({"put": {"key": key, "precondition": "always", "value": "1"}});
    let mut rows = Vec::new();
    let mut page = |route: &'static str, field, path: String, body: String, fate| {
        rows.push(Row(route, field, path, body, fate));
    };
    let none = String::new;
    for (route, fate) in [
        ("GET /", SentOn),
        ("GET /jobs", SentOn),
        ("GET /upcoming", Refused),
        ("GET /operations", Refused),
        ("GET /queues", Refused),
        ("GET /failures", Refused),
        ("GET /schedules", Refused),
        ("GET /topics", Refused),
        ("GET /workers", Refused),
        ("GET /activity", Refused),
        ("GET /events", Refused),
        ("GET /metrics", Refused),
        ("GET /healthz", Answered),
        ("GET /readyz", Answered),
        ("GET /style.css", Answered),
        ("GET /live.js", Answered),
        ("GET /login", Answered),
        ("POST /logout", Answered),
    ] {
        page(route, "", route.split_once(' ').unwrap().1.to_owned(), none(), fate);
    }
    page("POST /login", "token", "/login".into(), form(&[("token", "pt_00000000_00")]), Answered);
    for filter in ["queue:zz-queue", "queue:mail,zz-queue", "-queue:mail", "queue:zz*"] {
        page("GET /jobs", "filter", format!("/jobs?{}", form(&[("filter", filter)])), none(), Refused);
    }
    page("GET /upcoming", "queue", format!("/upcoming?queue={OTHER}"), none(), Refused);
    page("GET /jobs/{id}", "id", format!("/jobs/{waiting}"), none(), NotThere);
    page("GET /jobs/{id}/edit", "id", format!("/jobs/{waiting}/edit"), none(), NotThere);
    let edit = form(&[("job", &picked), ("payload", "1")]);
    page("POST /jobs/{id}/edit", "id", format!("/jobs/{waiting}/edit"), edit, NotThere);
    let copy = form(&[("job", &picked), ("copy", &own.to_string()), ("due", "now")]);
    page("POST /jobs/{id}/duplicate", "id", format!("/jobs/{waiting}/duplicate"), copy, NotThere);
    for (route, path) in [("POST /jobs/confirm", "/jobs/confirm"), ("POST /jobs/act", "/jobs/act")] {
        page(route, "job", path.into(), act(&picked), Refused);
        // A form that lies about the queue finds no job there.
        page(route, "job", path.into(), act(&as_own), if path.ends_with("act") { SentOn } else { Answered });
    }
    page("POST /jobs/matching", "filter", "/jobs/matching".into(), matching.clone(), Refused);
    page("POST /operations", "filter", "/operations".into(), matching, Refused);
    page("GET /operations/{id}", "id", format!("/operations/{operation}"), none(), NotThere);
    page("POST /operations/{id}/cancel", "id", format!("/operations/{operation}/cancel"), none(), NotThere);
    page("GET /queues/{name}", "name", format!("/queues/{OTHER}"), none(), Refused);
    for (route, act) in [
        ("POST /queues/{name}/pause", "pause"),
        ("POST /queues/{name}/resume", "resume"),
        ("POST /queues/{name}/purge", "purge"),
        ("GET /queues/{name}/settings", "settings"),
        ("POST /queues/{name}/settings", "settings"),
    ] {
        page(route, "name", format!("/queues/{OTHER}/{act}"), form(&[("name", OTHER)]), Refused);
    }
    page("GET /schedules/{name}", "name", "/schedules/zz-schedule".into(), none(), Refused);
    for (route, act) in [
        ("POST /schedules/{name}/pause", "pause"),
        ("POST /schedules/{name}/resume", "resume"),
        ("POST /schedules/{name}/fire", "fire"),
        ("POST /schedules/{name}/delete", "delete"),
    ] {
        page(
            route,
            "name",
            format!("/schedules/zz-schedule/{act}"),
            form(&[("name", "zz-schedule")]),
            Refused,
        );
    }
    for id in [ITS_WORKER, BOTH_WORKER] {
        for (route, api, act) in [
            ("POST /workers/{id}/quiet", "POST /api/v1/workers/{worker}/quiet", "quiet"),
            ("POST /workers/{id}/resume", "POST /api/v1/workers/{worker}/resume", "resume"),
            ("POST /workers/{id}/stop", "POST /api/v1/workers/{worker}/stop", "stop"),
        ] {
            page(route, "id", format!("/workers/{id}/{act}"), form(&[("confirmed", "yes")]), Refused);
            let fate = if id == ITS_WORKER { NotThere } else { Refused };
            page(api, "worker", format!("/api/v1/workers/{id}/{act}"), none(), fate);
        }
    }
    let tool = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    page("POST /mcp", "", "/mcp".into(), tool, NotThere);
    // The resources of the API.
    for (route, fate) in [
        ("GET /api/v1/openapi.json", Answered),
        ("GET /api/v1/jobs", Refused),
        ("GET /api/v1/queues", Refused),
        ("GET /api/v1/schedules", Refused),
        ("GET /api/v1/topics", Refused),
        ("GET /api/v1/stats", Refused),
        ("GET /api/v1/events", Refused),
        ("GET /api/v1/failures", Refused),
        ("GET /api/v1/operations", Refused),
        ("GET /api/v1/activity", Refused),
        ("GET /api/v1/upcoming", Refused),
        ("GET /api/v1/workers", Answered),
    ] {
        page(route, "", route.split_once(' ').unwrap().1.to_owned(), none(), fate);
    }
    page("GET /api/v1/jobs", "filter", "/api/v1/jobs?filter=queue:zz-queue".into(), none(), Refused);
    page("GET /api/v1/upcoming", "queue", format!("/api/v1/upcoming?queue={OTHER}"), none(), Refused);
    for (route, rest) in [
        ("GET /api/v1/jobs/{id}", ""),
        ("PATCH /api/v1/jobs/{id}", ""),
        ("DELETE /api/v1/jobs/{id}", ""),
        ("GET /api/v1/jobs/{id}/why", "/why"),
        ("POST /api/v1/jobs/{id}/cancel", "/cancel"),
        ("POST /api/v1/jobs/{id}/retry", "/retry"),
        ("POST /api/v1/jobs/{id}/run-now", "/run-now"),
    ] {
        let body = if route.starts_with("PATCH") { json!({"priority": "high"}).to_string() } else { none() };
        page(route, "id", format!("/api/v1/jobs/{waiting}{rest}"), body, NotThere);
    }
    for (route, rest, body) in [
        ("GET /api/v1/queues/{name}", "", none()),
        ("PATCH /api/v1/queues/{name}", "", json!({"max_jobs": 7}).to_string()),
        ("POST /api/v1/queues/{name}/pause", "/pause", none()),
        ("POST /api/v1/queues/{name}/resume", "/resume", none()),
        ("POST /api/v1/queues/{name}/purge", "/purge", none()),
    ] {
        page(route, "name", format!("/api/v1/queues/{OTHER}{rest}"), body, Refused);
    }
    let schedule =
        json!({"ticks": {"every_ms": 3_600_000}, "job": {"kind": "k", "queue": "mail"}}).to_string();
    for (route, rest, body) in [
        ("GET /api/v1/schedules/{name}", "", none()),
        ("PUT /api/v1/schedules/{name}", "", schedule),
        ("DELETE /api/v1/schedules/{name}", "", none()),
        ("POST /api/v1/schedules/{name}/pause", "/pause", none()),
        ("POST /api/v1/schedules/{name}/resume", "/resume", none()),
        ("POST /api/v1/schedules/{name}/fire", "/fire", none()),
    ] {
        page(route, "name", format!("/api/v1/schedules/zz-schedule{rest}"), body, Refused);
    }
    let subscription = json!({"queue": "mail"}).to_string();
    for (route, rest, body) in [
        ("GET /api/v1/topics/{name}", "", none()),
        ("DELETE /api/v1/topics/{name}", "", none()),
        ("POST /api/v1/topics/{name}/publish", "/publish", json!({"kind": "k"}).to_string()),
        ("POST /api/v1/topics/{name}/subscribe", "/subscribe", subscription.clone()),
        ("POST /api/v1/topics/{name}/unsubscribe", "/unsubscribe", subscription),
    ] {
        page(route, "name", format!("/api/v1/topics/zz-topic{rest}"), body, Refused);
    }
    let order = |filter: &str| json!({"action": "cancel", "filter": filter, "reason": "r"}).to_string();
    for filter in ["queue:zz-queue", "queue:mail,zz-queue", "-queue:mail", "state:waiting"] {
        page("POST /api/v1/operations", "filter", "/api/v1/operations".into(), order(filter), Refused);
    }
    page("GET /api/v1/operations/{id}", "id", format!("/api/v1/operations/{operation}"), none(), NotThere);
    page(
        "POST /api/v1/operations/{id}/cancel",
        "id",
        format!("/api/v1/operations/{operation}/cancel"),
        none(),
        NotThere,
    );
    for (job, fate) in [
        (new(json!({"queue": OTHER})), Refused),
        (new(json!({"id": waiting})), Conflict),
        (new(json!({"id": running.job})), Conflict),
        (new(json!({"id": derived})), Refused),
        // The same key leads to another id in another queue.
        (new(json!({"idempotency_key": "welcome:43", "kind": "zz-kind"})), Answered),
        (new(json!({"unique": {"key": "zz-key"}, "group": "zz-group", "kind": "zz-kind"})), Answered),
    ] {
        page("POST /api/v1/jobs", "job", "/api/v1/jobs".into(), job.to_string(), fate);
        page(
            "POST /api/v1/{enqueue}",
            "jobs",
            "/api/v1/enqueue".into(),
            enqueue(job.clone()).to_string(),
            fate,
        );
        let numbered = json!({"jobs": [job], "instance": "b7", "call": 1});
        if numbered["jobs"][0]["id"].is_string() {
            page("POST /api/v1/{enqueue}", "jobs", "/api/v1/enqueue".into(), numbered.to_string(), fate);
        }
    }
    // The calls.
    let mut call = |route: &'static str, field, body: Value, fate| {
        let name = route.rsplit(['{', '}']).nth(1).unwrap();
        rows.push(Row(route, field, format!("/api/v1/{name}"), body.to_string(), fate));
    };
    for route in ["POST /api/v1/{store}", "POST /api/v1/{identity}", "POST /api/v1/{now}"] {
        call(route, "", json!({}), Answered);
    }
    // Upkeep, which shows nothing.
    call("POST /api/v1/{sweep}", "", json!({"limit": 10}), Answered);
    call("POST /api/v1/{list}", "", json!({"limit": 10}), Refused);
    call("POST /api/v1/{list}", "filter", json!({"limit": 10, "filter": "queue:zz-queue"}), Refused);
    call(
        "POST /api/v1/{upcoming}",
        "queue",
        json!({"queue": OTHER, "bucket_ms": 1_000, "buckets": 3}),
        Refused,
    );
    for route in ["POST /api/v1/{queues}", "POST /api/v1/{audit}", "POST /api/v1/{doctor}"] {
        call(route, "", json!({}), Refused);
    }
    call("POST /api/v1/{count}", "", json!({}), Refused);
    call("POST /api/v1/{count}", "queue", json!({"queue": OTHER}), Refused);
    call("POST /api/v1/{wait}", "queues", json!({"queues": ["mail", OTHER], "at_most_ms": 0}), Refused);
    call("POST /api/v1/{get}", "id", json!({"id": waiting}), NotThere);
    call("POST /api/v1/{get}", "id", json!({"id": running.job}), NotThere);
    call("POST /api/v1/{holder}", "key", json!({"key": key}), Refused);
    call("POST /api/v1/{take}", "queue", json!({"queue": OTHER, "max": 1}), Refused);
    call("POST /api/v1/{reserve}", "queues", json!({"queues": ["mail", OTHER], "max": 2}), Refused);
    call("POST /api/v1/{extend}", "leases", json!({"leases": [lease]}), Refused);
    call("POST /api/v1/{settle}", "settle", json!({"settle": [settlement]}), Refused);
    call("POST /api/v1/{settle}", "settle", json!({"settle": [retry]}), Refused);
    call(
        "POST /api/v1/{settle}",
        "then",
        json!({"settle": [], "then": {"queues": [OTHER], "max": 1}}),
        Refused,
    );
    for target in [json!({"id": waiting}), json!({"key": key})] {
        call(
            "POST /api/v1/{act}",
            "targets",
            json!({"targets": [target], "action": {"action": "cancel"}}),
            Refused,
        );
    }
    for op in [
        json!("show"),
        json!({"pause": {"by": "x", "reason": "y"}}),
        json!("resume"),
        json!({"open": {"group": "zz-group"}}),
        json!({"set": {"max_jobs": 7}}),
        json!({"replace": {"seen": {}, "new": {"max_jobs": 7}}}),
        json!({"purge": 1}),
    ] {
        call("POST /api/v1/{queue}", "name", json!({"name": OTHER, "op": op}), Refused);
    }
    for (op, fate) in [
        (get("schedule/zz-schedule"), NotThere),
        (always("schedule/zz-schedule"), Refused),
        (get("topic/zz-topic"), Refused),
        (always("topic/zz-topic"), Refused),
        (get("zz-key"), Refused),
        (get("token/00000000"), Refused),
        (get("session/00000000/00000000"), Refused),
        (always("session/00000000/00000000"), Refused),
        (json!({"list": {"prefix": "", "limit": 10}}), Refused),
        (json!({"list": {"prefix": "worker/", "limit": 10}}), Refused),
        (get(&format!("worker/{ITS_WORKER}")), NotThere),
        (get(&format!("worker/{BOTH_WORKER}")), NotThere),
        (over(ITS_WORKER), Refused),
        (over(BOTH_WORKER), Refused),
        (fresh(&[OTHER]), Refused),
        (fresh(&["mail", OTHER]), Refused),
        (fresh(&["mail"]), Answered),
    ] {
        call("POST /api/v1/{doc}", "key", op, fate);
    }
    call("POST /api/v1/{tool}", "name", json!({"lock": {"show": {"name": "l"}}}), Refused);
    rows
}

/// The routes in the source of the server. A call is a route of its own.
fn routes() -> BTreeSet<String> {
    fn files(folder: &Path, into: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { files(&path, into) } else { into.push(path) }
        }
    }
    let (mut all, mut paths) = (BTreeSet::new(), Vec::new());
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut paths);
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|is| is == "rs")) {
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for rest in code.split(".route(").skip(1) {
            // The arguments, to the end of the call.
            let mut depth = 1;
            let end = rest.find(|c| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            });
            let arguments = rest[..end.unwrap()].trim_start();
            let Some((route, handlers)) = arguments.strip_prefix('"').and_then(|text| text.split_once('"'))
            else {
                continue;
            };
            for method in ["get", "post", "put", "patch", "delete"] {
                let begins = |at: usize| !handlers[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                if handlers.match_indices(&format!("{method}(")).any(|(at, _)| begins(at)) {
                    all.insert(format!("{} {route}", method.to_uppercase()));
                }
            }
        }
    }
    assert!(all.remove("POST /api/v1/{call}"), "{all:?}");
    all.extend(CALLS.map(|call| format!("POST /api/v1/{{{call}}}")));
    // They are routes as well, for the call of their name.
    for name in ["queues", "upcoming"] {
        all.remove(&format!("POST /api/v1/{name}"));
    }
    all
}

/// Everything of the other queue.
async fn other(site: &Site) -> String {
    let store = site.client().store();
    let list = List { filter: Filter::parse("queue:zz-queue").unwrap(), after: None, limit: 1_000 };
    let jobs = store.list(&list).await.unwrap().jobs;
    let queue = store.queue(OTHER, &QueueOp::Show).await.unwrap();
    let mut docs = Vec::new();
    for key in ["schedule/zz-schedule", "topic/zz-topic", "zz-key"].map(str::to_owned) {
        docs.push(store.doc(&DocOp::Get { key }).await.unwrap());
    }
    for id in [ITS_WORKER, BOTH_WORKER] {
        docs.push(store.doc(&DocOp::Get { key: format!("worker/{id}") }).await.unwrap());
    }
    format!("{jobs:#?}{queue:#?}{docs:#?}")
}

#[tokio::test]
async fn a_token_for_one_queue_reads_and_changes_nothing_of_another() {
    let site = Site::new().await;
    let things = things(&site).await;
    let before = other(&site).await;
    let mut named = BTreeSet::new();
    for Row(route, field, path, body, fate) in rows(&things) {
        named.insert(route.to_owned());
        let shown = format!("{route} {field}: {path} {body}");
        let is_page = !path.starts_with("/api/") && path != "/mcp";
        let mut request = Request::builder().method(route.split_once(' ').unwrap().0).uri(&path);
        if is_page {
            request = request.header("sec-fetch-site", "same-origin").header("host", "localhost");
            request = request.header("content-type", "application/x-www-form-urlencoded");
        }
        let asked =
            percent_encoding::percent_decode_str(&format!("{path} {body}")).decode_utf8_lossy().into_owned();
        let answer = site.request(&site.tokens.mail_admin, request.body(Body::from(body)).unwrap()).await;
        let says = |what: &str| answer.status == 200 && answer.text.contains(what);
        let is_as_said = match fate {
            Refused => answer.status == 403,
            NotThere => answer.status == 404 || says(r#""job":null"#) || says(r#""is":null"#),
            Conflict => answer.status == 409 || says(r#""status":"conflict""#),
            Answered => matches!(answer.status, 200 | 201 | 303 | 401) && !says(r#""status":"conflict""#),
            SentOn => answer.status == 303,
        };
        let said = answer.text.chars().take(500).collect::<String>();
        assert!(is_as_said, "{shown}\nis not {fate:?}: {} {said}", answer.status);
        for name in NAMES.iter().filter(|name| !asked.contains(**name)) {
            assert!(!answer.text.contains(name), "{shown}\nshows {name}: {said}");
            assert!(!answer.location.as_deref().unwrap_or_default().contains(name), "{shown}: {answer:?}");
        }
        assert!(before == other(&site).await, "{shown}\nchanged something: {said}");
    }
    // What the other queue expects under its own key arrives there.
    let job = json!({"kind": "zz-kind", "queue": OTHER, "idempotency_key": "welcome:43"});
    let made = site.call(&site.tokens.admin, "enqueue", &json!({"jobs": [job]})).await.json();
    assert_eq!(made["results"][0]["status"], "inserted", "{made}");
    let routes = routes();
    let missing: Vec<_> = routes.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&routes).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "not in the table: {missing:?}; no routes: {unknown:?}"
    );
}
