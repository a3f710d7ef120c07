//! A dashboard to send requests to, and stores with jobs in every state.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
    response::Response,
};
use punctual::{
    Client, NewJob, Payload, Unique, When,
    job::{Concurrency, Filter, LogLine, Notes, Progress},
    store::{CallId, Heartbeat, Lease, List, QueueRequest, Reserve, Settlement, Verdict},
    testing::{Fault, FaultyStore, TestQueue},
};
use punctual_server::{DashboardOptions, dashboard};
use tower::ServiceExt as _;

/// A dashboard, nested under its base path.
pub(crate) struct Site {
    router: Router,
    base: String,
}

/// What a dashboard answered.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) location: String,
    pub(crate) text: String,
    /// The length of the body, which may be compressed.
    pub(crate) bytes: usize,
    headers: HeaderMap,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }
}

impl Site {
    pub(crate) fn new(client: &Client, options: DashboardOptions) -> Self {
        let base = options.base_path.clone();
        let router = dashboard(client, options);
        let router = if base.is_empty() { router } else { Router::new().nest(&base, router) };
        Self { router, base }
    }

    /// The address of a page.
    pub(crate) fn path(&self, page: &str) -> String {
        if page.is_empty() && self.base.is_empty() { "/".to_owned() } else { format!("{}{page}", self.base) }
    }

    /// A request for the first thousand jobs.
    pub(crate) fn all() -> List {
        List { filter: Filter::all(), after: None, limit: 1_000 }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], &[]).await
    }

    /// Sends a form as a page of this origin does.
    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.send("POST", path, fields, &[("sec-fetch-site", "same-origin")]).await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Answer {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let answer = self.answer(method, path, headers, body).await;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let location = headers.get("location").map(|value| value.to_str().unwrap().to_owned());
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Answer { status, location: location.unwrap_or_default(), text, bytes: bytes.len(), headers }
    }

    /// The head of an answer whose body may have no end.
    pub(crate) async fn headers(&self, path: &str, headers: &[(&str, &str)]) -> HeaderMap {
        self.answer("GET", path, headers, String::new()).await.headers().clone()
    }

    async fn answer(&self, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> Response {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap()
    }
}

/// A store in memory and one in a file. Both are empty, and their clocks stand still.
pub(crate) async fn stores() -> [TestQueue; 2] {
    let path = tempfile::tempdir().unwrap().keep().join("test.db");
    [TestQueue::new(), TestQueue::connect(&format!("sqlite:{}", path.display())).await.unwrap()]
}

pub(crate) fn job(client: &Client, kind: &str, queue: &str, payload: Payload) -> NewJob {
    NewJob::new(client.make_id(), kind, queue, payload)
}

/// A client of the same store, and how many calls it has made.
pub(crate) fn counted(client: &Client) -> (Client, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let store = FaultyStore::new(Arc::clone(client.store()), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Fault::Pass
    });
    (Client::new(Arc::new(store)), calls)
}

/// The form that purges a queue.
pub(crate) fn purge_form(name: &str) -> [(&str, &str); 1] {
    [("name", name)]
}

/// Reserves all due jobs of a queue. `number` differs from call to call.
pub(crate) async fn reserve(client: &Client, queue: &str, number: u64) -> Vec<Lease> {
    let request = Reserve {
        call: CallId { instance: 7, number },
        worker: "w-1".to_owned(),
        queues: vec![QueueRequest { queue: queue.to_owned(), share: 99, at_most: 99 }],
        n: 99,
        lease: None,
        company: false,
    };
    let batch = client.store().reserve(&request).await.unwrap();
    batch.jobs.into_iter().map(|reserved| reserved.lease).collect()
}

/// Fills a queue of this name with jobs in every state, whose texts all contain it. Also a topic and a schedule.
pub(crate) async fn fill(t: &TestQueue, text: &str) {
    let client = &t.client;
    let number = 10 * (client.count(None).await.unwrap().total() + 1);
    let full = |run_at| {
        let mut job = job(client, text, text, Payload::json(format!("payload of {text}")));
        job.run_at = run_at;
        job.group = Some(text.to_owned());
        job.tags = vec![text.to_owned()];
        job.headers.insert(text.to_owned(), format!("header of {text}"));
        job
    };
    client.push((0..4).map(|_| full(When::Now)).collect()).await.unwrap();
    let verdicts = [
        Verdict::Dead { error: format!("421 {text}") },
        Verdict::Retry { at: When::In(Duration::from_mins(9)), error: format!("later {text}") },
        Verdict::AckWith { result: Payload::json(format!("result of {text}")) },
    ];
    let leases = reserve(client, text, number).await;
    assert_eq!(leases.len(), 4);
    let line = LogLine { attempt: 1, at_ms: 1_795_192_330_000, text: format!("line {text}") };
    let progress = Progress { done: 3, total: Some(10), message: Some(text.to_owned()) };
    let notes = Notes { progress: Some(progress), log: vec![line] };
    let beat = Heartbeat { lease: leases[3], notes: Some(notes), company: false, lasts: None };
    client.store().extend(&[beat]).await.unwrap();
    for (lease, verdict) in leases.into_iter().zip(verdicts) {
        client.store().settle(&[Settlement { lease, verdict }], None).await.unwrap();
    }
    let mut keyed = full(When::In(Duration::from_mins(30)));
    keyed.unique = Some(Unique::key(text));
    keyed.concurrency = Some(Concurrency { key: text.to_owned(), limit: 1 });
    let late = full(When::In(Duration::from_hours(30)));
    let cancelled = late.id;
    client.push(vec![keyed, late, full(When::Now)]).await.unwrap();
    let cancel = punctual::store::Action::Cancel { reason: Some(format!("reason {text}")) };
    client.act(&[cancelled.into()], &cancel).await.unwrap();
    client.queue(text).pause(text, text).await.unwrap();
    client.topic(text).subscribe(text).await.unwrap();
    let cron = punctual::schedule::Cron::new("0 3 * * *").unwrap();
    let of = punctual::schedule::Schedule::new(cron, job(client, text, text, Payload::json("1"))).unwrap();
    client.schedule(text).put(of).await.unwrap();
}
