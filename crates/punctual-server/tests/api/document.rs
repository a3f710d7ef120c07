//! The document of the API says what the server does: its calls, what they accept, and what they answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request},
};
use jsonschema::Validator;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::site::{CALLS, CODES, Site};

/// The document, and what checks bodies against it.
pub(crate) struct Document {
    text: Value,
    /// By operation, such as `POST list` or `GET jobs/{id}`.
    requests: BTreeMap<String, Validator>,
    /// By operation and status.
    answers: BTreeMap<(String, u16), Validator>,
}

static DOCUMENT: OnceLock<Document> = OnceLock::new();

impl Document {
    /// Reads the document once for all tests.
    pub(crate) async fn of(router: &Router) -> &'static Self {
        if DOCUMENT.get().is_none() {
            let request = Request::get("/api/v1/openapi.json").body(Body::empty()).unwrap();
            let answer = router.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), 200, "nobody needs a token to read the document");
            let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            let text = serde_json::from_slice(&bytes).unwrap();
            DOCUMENT.get_or_init(|| Self::new(text));
        }
        DOCUMENT.get().unwrap()
    }

    fn new(text: Value) -> Self {
        let validator = |schema: &Value, components: &Value| {
            let root = json!({"allOf": [schema], "components": components});
            jsonschema::draft202012::new(&root).unwrap_or_else(|e| panic!("{schema}: {e}"))
        };
        let own = &text["components"];
        // An answer can have further fields in a later version, but not in this one.
        let mut strict = own.clone();
        close(&mut strict["schemas"]);
        let (mut requests, mut answers) = (BTreeMap::new(), BTreeMap::new());
        let paths = text["paths"].as_object().unwrap();
        let operations = paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap();
            methods.iter().map(move |(method, it)| (format!("{} {}", method.to_uppercase(), &path[1..]), it))
        });
        for (name, operation) in operations {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            if schema.is_object() {
                requests.insert(name.clone(), validator(schema, own));
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                let status: u16 = status.parse().unwrap();
                let reference = response["$ref"].as_str().map(|reference| &reference[1..]);
                let response = reference.map_or(response, |pointer| text.pointer(pointer).unwrap());
                if let Some(content) = response["content"].as_object() {
                    let schema = &content.values().next().unwrap()["schema"];
                    answers.insert((name.clone(), status), validator(schema, &strict));
                }
            }
        }
        Self { text, requests, answers }
    }

    fn accepts(&self, call: &str, body: &Value) -> bool {
        self.requests[&format!("POST {call}")].is_valid(body)
    }

    /// All operations.
    pub(crate) fn operations(&self) -> BTreeSet<String> {
        self.answers.keys().map(|(operation, _)| operation.clone()).collect()
    }

    /// The operation of a request, if the document has it.
    pub(crate) fn operation(&self, method: &Method, path: &str) -> Option<String> {
        let parts: Vec<&str> = path.strip_prefix("/api/v1/")?.split('/').collect();
        let is_it = |template: &&str| {
            let of: Vec<&str> = template[1..].split('/').collect();
            of.len() == parts.len()
                && of.iter().zip(&parts).all(|(of, part)| of == part || of.starts_with('{'))
        };
        let paths = self.text["paths"].as_object().unwrap();
        let path = paths.keys().map(String::as_str).find(is_it)?;
        paths[path].get(method.as_str().to_lowercase()).map(|_| format!("{method} {}", &path[1..]))
    }

    /// Checks a body that the server accepted.
    pub(crate) fn check_request(&self, operation: &str, body: &Value) {
        let wrong: Vec<String> = self.requests[operation].iter_errors(body).map(|e| e.to_string()).collect();
        assert!(wrong.is_empty(), "the document does not allow {operation} {body}: {wrong:#?}");
    }

    /// Checks an answer of the server.
    pub(crate) fn check_answer(&self, operation: &str, status: u16, text: &str) {
        let validator = self.answers.get(&(operation.to_owned(), status));
        let validator = validator.unwrap_or_else(|| panic!("{operation} has no status {status}: {text}"));
        // Payloads can be deeper than what a reader takes.
        let Ok(body) = serde_json::from_str(text) else { return };
        let wrong: Vec<String> = validator.iter_errors(&body).map(|e| e.to_string()).collect();
        assert!(wrong.is_empty(), "{operation} {status} {text} is not as in the document: {wrong:#?}");
    }
}

/// Allows no further fields in objects that name some.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let is_object = fields
                .get("type")
                .is_some_and(|kind| *kind == "object" || *kind == json!(["object", "null"]));
            if is_object && fields.contains_key("properties") {
                fields.insert("additionalProperties".to_owned(), json!(false));
            }
            fields.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Bodies with every object that a request can have.
fn bodies(site: &Site) -> Vec<(&'static str, Value)> {
    let job = json!({
        "kind": "k", "queue": "mail", "payload": {"to": "ana"}, "headers": {"a": "b"}, "tags": ["t"],
        "unique": {"key": "u", "scope": {"window_ms": 1000}, "on_conflict": "replace", "version": 1},
        "backoff": {"type": "linear", "base_ms": 1}, "progress": {"done": 1}, "state": "done",
    });
    let reserve = json!({"queues": [{"queue": "none", "share": 1}, "none"], "max": 1, "company": true});
    let notes = json!({"progress": {"done": 1}, "log": [{"attempt": 1, "at_ms": 5, "text": "x"}]});
    let mut beat = site.mail.lease();
    beat["notes"] = notes;
    let guard = json!({"queue": "mail", "state": "dead", "version": 7});
    let settings = json!({
        "rate": {"max": 1, "period_ms": 1}, "group": {"weight": 1}, "groups": {"g": {"rate": {"max": 1, "period_ms": 1}}},
        "done": {"age_ms": 1, "count": 1, "bytes": 1}, "paused": {"since_ms": 1, "by": "a", "reason": "b"},
        "defaults": {"backoff": {"type": "fixed", "base_ms": 1}},
    });
    let queue = |op: Value| ("queue", json!({"name": "other", "op": op}));
    let doc = |op: Value| ("doc", op);
    let board = |act: Value| {
        ("tool", json!({"board": {"name": "b", "window": {"bucket": "day", "buckets": 1}, "act": act}}))
    };
    let lock = |op: Value| ("tool", json!({"lock": op}));
    let limit = |rule: Value| ("tool", json!({"limit": {"name": "l", "key": "k", "cost": 1, "rule": rule}}));
    vec![
        ("store", json!({})),
        ("identity", json!({})),
        ("now", json!({})),
        ("enqueue", json!({"jobs": [job]})),
        ("reserve", reserve.clone()),
        ("extend", json!({"leases": [beat]})),
        (
            "settle",
            json!({"settle": [{"id": site.mail.waiting, "fence": 1, "verdict": "release"}], "then": reserve}),
        ),
        ("take", json!({"queue": "none", "max": 1})),
        ("wait", json!({"queues": ["mail"], "at_most_ms": 0})),
        ("get", json!({"id": site.mail.waiting})),
        ("holder", json!({"key": site.mail.key()})),
        ("list", json!({"limit": 1})),
        ("count", json!({})),
        ("upcoming", json!({"bucket_ms": 1, "buckets": 1})),
        (
            "act",
            json!({"targets": [{"id": site.mail.waiting, "guard": guard}], "action": {"action": "run_now"}}),
        ),
        (
            "act",
            json!({"targets": [{"key": site.mail.key(), "guard": guard}], "action": {"action": "edit", "payload": {}}}),
        ),
        queue(json!("show")),
        queue(json!({"pause": {"by": "a", "reason": "b"}})),
        queue(json!({"open": {"group": null}})),
        queue(json!({"set": settings})),
        queue(json!({"replace": {"seen": settings, "new": settings}})),
        queue(json!({"purge": 1})),
        ("queues", json!({})),
        doc(json!({"get": {"key": "note"}})),
        doc(json!({"list": {"prefix": "", "after": null, "limit": 1}})),
        doc(json!({"put": {"key": "new", "precondition": {"if_version": 1}, "value": "1"}})),
        doc(json!({"remove": {"key": "new", "precondition": "always"}})),
        limit(json!({"log": {"max": 1, "period_ms": 1, "counts_refused": true}})),
        limit(json!({"gcra": {"max": 1, "period_ms": 1, "burst": 1}})),
        lock(json!({"acquire": {"name": "m", "owner": "1", "lease_ms": 60_000}})),
        lock(json!({"extend": {"name": "m", "owner": "1", "lease_ms": 60_000}})),
        lock(json!({"release": {"name": "m", "owner": "1"}})),
        lock(json!({"show": {"name": "m"}})),
        lock(json!({"list": {"limit": 1}})),
        board(json!("size")),
        board(json!({"add": {"member": "a", "by": 1, "members_max": 9}})),
        board(json!({"add_all": {"members": [["a", 1]], "members_max": 9}})),
        board(json!({"set": {"member": "a", "score": 1, "members_max": 9}})),
        board(json!({"rank": {"member": "a"}})),
        board(json!({"top": {"n": 1}})),
        board(json!({"around": {"member": "a", "n": 1}})),
        board(json!({"remove": {"member": "a"}})),
        ("sweep", json!({"limit": 1})),
        ("audit", json!({})),
        ("doctor", json!({})),
    ]
}

/// The places of all objects in a value.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.push(at.to_owned());
            fields.iter().for_each(|(name, value)| objects(value, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, value)| objects(value, &format!("{at}/{i}"), found));
        }
        _ => {}
    }
}

#[tokio::test]
async fn the_document_has_every_call_and_no_other() {
    let site = Site::new().await;
    let paths = site.document.text["paths"].as_object().unwrap();
    let posted = paths.iter().filter(|(_, path)| path["post"].is_object()).map(|(path, _)| &path[1..]);
    // The others are of resources.
    let calls: BTreeSet<&str> =
        posted.filter(|path| !["jobs", "operations"].contains(path) && !path.contains('/')).collect();
    assert_eq!(calls, CALLS.into());
    for call in calls {
        let answer = site.send(&site.tokens.admin, call, "nonsense").await;
        assert!(answer.is(422, "invalid"), "{call}: {answer:?}");
    }
    let codes = &site.document.text["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
    for code in CODES {
        assert!(codes.as_array().unwrap().contains(&json!(code)), "{code}");
    }
}

/// Lists the places of `null` in a document, outside of the words of an enumeration.
fn nulls(value: &Value, place: &str, into: &mut Vec<String>) {
    match value {
        Value::Null => into.push(place.to_owned()),
        Value::Array(items) if !place.ends_with("/enum") => {
            items.iter().enumerate().for_each(|(n, item)| nulls(item, &format!("{place}/{n}"), into));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| nulls(field, &format!("{place}/{name}"), into));
        }
        _ => {}
    }
}

/// Generators and validators refuse a document with a description that is `null`.
#[tokio::test]
async fn everything_in_the_document_has_a_value() {
    let mut places = Vec::new();
    nulls(&Site::new().await.document.text, "", &mut places);
    assert_eq!(places, [""; 0]);
}

#[tokio::test]
async fn anybody_can_read_the_document_and_only_read_it() {
    for site in [Site::new().await, Site::read_only().await] {
        for token in ["", site.tokens.mail_blind.as_str(), "pt_wrong"] {
            let answer = site.get(token, "/api/v1/openapi.json").await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.json()["openapi"], "3.1.0");
        }
    }
    let site = Site::new().await;
    let request = Request::post("/api/v1/openapi.json").body(Body::empty()).unwrap();
    let answer = site.request(&site.tokens.admin, request).await;
    assert!(answer.is(405, "invalid"), "{answer:?}");
}

#[tokio::test]
async fn the_server_and_the_document_reject_the_same_unknown_fields() {
    let site = Site::new().await;
    for (call, body) in bodies(&site) {
        let answer = site.call(&site.tokens.admin, call, &body).await;
        assert_eq!(answer.status, 200, "{call} {body}: {answer:?}");
        let mut places = Vec::new();
        objects(&body, "", &mut places);
        for place in places {
            let mut body = body.clone();
            let object = body.pointer_mut(&place).unwrap().as_object_mut().unwrap();
            object.insert("from_the_future".to_owned(), json!("x"));
            let answer = site.send(&site.tokens.admin, call, body.to_string()).await;
            assert_eq!(
                answer.status == 200,
                site.document.accepts(call, &body),
                "{call} {body} with {place}: {answer:?}"
            );
            // What belongs to the caller, what an enqueue ignores, and notes, whose form is also that of answers.
            let is_free = ["/payload", "/headers", "/progress", "/notes", "/log/0"]
                .iter()
                .any(|end| place.ends_with(end));
            assert_eq!(answer.status == 200, is_free, "{call} {body} with {place}: {answer:?}");
        }
    }
}
