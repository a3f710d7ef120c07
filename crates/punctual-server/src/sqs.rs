//! The protocol of Amazon SQS, as SDKs speak it since 2023: `POST /`, JSON 1.0, and the action in the header `X-Amz-Target`.
//!
//! A queue of SQS is a queue of the store, and a message is a job (`sqs/message.rs`). Requests are signed with a token
//! (`gate/signed.rs`). Nothing here waits for a thing that another process must do: all state is in the store.
//!
//! The door stands before the gate and the router of the server, and takes only the requests that are its own.

mod action;
mod attributes;
mod batch;
mod fault;
mod fifo;
mod md5;
mod message;
mod purge;
mod queue;
mod queues;
mod receipt;
mod receive;
mod redrive;
mod send;
mod settle;
mod tags;
mod unverified;

use std::{mem, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, HttpBody as _, to_bytes},
    extract::{Request, State},
    http::{
        HeaderName, HeaderValue, Method, StatusCode, Uri,
        header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST},
        request::Parts,
    },
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use punctual::{CancellationToken, Client};
use serde::Serialize;
use tokio::time::timeout;

use self::{
    action::Action,
    fault::{Code, Fault},
    purge::Cleaning,
    queue::{ACCOUNT, Queue, Queues},
    unverified::Unverified,
};
use crate::{
    accept::{Encrypted, Seat},
    activity::{Activity, Actor, Entry, Via},
    api::{Lanes, Room},
    gate::{self, Caller, Gate, Right},
};

/// The service that requests are signed for.
const SERVICE: &str = "sqs";
/// The region of requests without a signature.
const REGION: &str = "us-east-1";
/// The media type of answers.
const CONTENT: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");
const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
/// The largest body of a request, in bytes: a batch of 1 MiB, each byte of which is escaped.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The longest body of a refused request that is taken, in bytes, and how long that may take.
const DRAIN_BYTES_MAX: usize = 64 * 1024;
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// A body of an answer, as JSON.
type Reply = Result<Vec<u8>, Fault>;

/// What answers requests of the protocol.
#[derive(Debug)]
pub(crate) struct Door {
    client: Client,
    gate: Gate,
    activity: Activity,
    /// Ends waits.
    stop: CancellationToken,
    /// The path under which the server is reached, without a slash at its end.
    base: String,
    is_read_only: bool,
    /// Numbers for reserves.
    lanes: Lanes,
    room: Room,
    /// The room for bodies whose signature is not checked yet.
    unverified: Unverified,
    queues: Queues,
    cleaning: Cleaning,
}

impl Door {
    pub(crate) fn new(
        client: &Client,
        gate: &Gate,
        activity: &Activity,
        base: &str,
        is_read_only: bool,
        stop: &CancellationToken,
    ) -> Self {
        Self {
            client: client.clone(),
            gate: gate.clone(),
            activity: activity.clone(),
            stop: stop.clone(),
            base: base.to_owned(),
            is_read_only,
            lanes: Lanes::new(|| fastrand::u64(..)),
            room: Room::new(),
            unverified: Unverified::default(),
            queues: Queues::new(client),
            cleaning: Cleaning::new(),
        }
    }

    /// Puts the door before a router, which gets all other requests.
    pub(crate) fn before(self, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(Arc::new(self), enter))
    }

    /// Returns whether a request is one of the protocol: `POST /`, or to the address of a queue, below the base path. With a GET, the older
    /// protocol names its action in the address.
    fn is_for_it(&self, request: &Request) -> bool {
        let Some(path) = request.uri().path().strip_prefix(self.base.as_str()) else { return false };
        let is_of_queue = || {
            let mut parts = path.split('/');
            let is_account =
                |text: &str| text.len() == ACCOUNT.len() && text.bytes().all(|byte| byte.is_ascii_digit());
            parts.next() == Some("")
                && parts.next().is_some_and(is_account)
                && parts.next().is_some()
                && parts.next().is_none()
        };
        let is_its_method =
            request.method() == Method::POST || request.method() == Method::GET && has_action(request.uri());
        is_its_method && (matches!(path, "" | "/") || is_of_queue())
    }
}

/// Answers a request of the protocol, or passes it on.
async fn enter(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    if !door.is_for_it(&request) {
        return next.run(request).await;
    }
    if has_action(request.uri()) {
        return old_protocol();
    }
    let (parts, body) = request.into_parts();
    let content = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if content.starts_with("application/x-www-form-urlencoded") {
        return old_protocol();
    }
    match answer(door, parts, body).await {
        Ok(body) => ([(CONTENT_TYPE, CONTENT), (REQUEST_ID, request_id())], body).into_response(),
        Err(fault) => fault.into_response(),
    }
}

async fn answer(door: Arc<Door>, mut parts: Parts, body: Body) -> Reply {
    for name in [AUTHORIZATION, COOKIE] {
        if let Some(value) = parts.headers.get_mut(name) {
            value.set_sensitive(true);
        }
    }
    let target = parts.headers.get(TARGET).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // Who has no right to ask is refused before its body is read.
    let claimed = async || Ok((Action::of(target)?, door.gate.claim(&parts, SERVICE).await?));
    let (action, claim) = match claimed().await {
        Ok(claimed) => claimed,
        Err(fault) => {
            drain(body).await;
            return Err(fault);
        }
    };
    let (caller, bytes, _room) = if claim.is_verified(&parts) {
        let mut body = door.room.read_at_most(BODY_BYTES_MAX, body).await?;
        let bytes = mem::take(&mut body.bytes);
        let (caller, bytes) = door.gate.verify(claim, &parts, parts.uri.path(), bytes).await?;
        (caller, bytes, Some(body))
    } else {
        let mut body = door.unverified.read(BODY_BYTES_MAX, body).await?;
        let bytes = mem::take(&mut body.bytes);
        let (caller, bytes) = door.gate.verify(claim, &parts, parts.uri.path(), bytes).await?;
        drop(body);
        let room = door.room.hold(bytes.len())?;
        (caller, bytes, room)
    };
    if let Some(seat) = parts.extensions.get::<Arc<Seat>>() {
        seat.know();
    }
    if door.is_read_only && Right::Read < action.right() {
        return Err(Fault::new(
            Code::AccessDenied,
            "The server is read-only. Use another server of the store, or start this one without --read-only.",
        ));
    }
    let region = gate::region(&parts, SERVICE).unwrap_or_else(|| REGION.to_owned());
    let site = site(&parts, &door.base);
    let call = Call { door: Arc::clone(&door), parts, caller, action, region, site };
    if action.right() < Right::Admin {
        return action.answer(&call, &bytes).await;
    }
    // A change must be in the activity log, also if its client leaves meanwhile.
    let made = tokio::spawn(async move { action.answer(&call, &bytes).await });
    made.await.unwrap_or_else(|_| Err(Fault::new(Code::InternalFailure, "The action ended early.")))
}

/// Takes a short body of a request that is refused. Otherwise its connection would end, and with it the client's next request.
async fn drain(body: Body) {
    let is_short = body.size_hint().upper().is_some_and(|bytes| bytes <= DRAIN_BYTES_MAX as u64);
    if is_short {
        _ = timeout(DRAIN_MAX, to_bytes(body, DRAIN_BYTES_MAX)).await;
    }
}

/// Returns the address of the server, as the client has reached it. The scheme of a proxy that lies breaks only the addresses of its own
/// clients.
fn site(parts: &Parts, base: &str) -> String {
    let is_secure = parts.extensions.get::<Encrypted>().is_some()
        || parts.headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
    let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host =
        host.or_else(|| parts.uri.authority().map(axum::http::uri::Authority::as_str)).unwrap_or("localhost");
    format!("{}://{host}{base}", if is_secure { "https" } else { "http" })
}

/// A request that was let in.
#[derive(Debug)]
struct Call {
    door: Arc<Door>,
    /// The head of the request.
    parts: Parts,
    caller: Caller,
    action: Action,
    region: String,
    /// The address of the server, without a slash at its end.
    site: String,
}

impl Call {
    /// Checks that the caller has a right in a queue.
    fn may(&self, right: Right, queue: &str) -> Result<(), Fault> {
        Ok(self.caller.may(right, Some(queue))?)
    }

    /// Checks the caller and its right in a queue again, in an answer that lasts longer than a key is believed.
    async fn may_still(&self, queue: &str) -> Result<(), Fault> {
        let caller = self.door.gate.again(&self.parts, SERVICE).await?;
        Ok(caller.may(self.action.right(), Some(queue))?)
    }

    /// Returns the queue of an address, if the caller has the right that the action needs in it. Who has none does not learn whether it
    /// is there.
    async fn queue<'a>(&self, url: &'a str) -> Result<(&'a str, Arc<Queue>), Fault> {
        let name = queue::name_of(url)?;
        self.may(self.action.right(), name)?;
        Ok((name, self.door.queues.get(name).await?))
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{ACCOUNT}/{name}", self.site)
    }

    /// Says in the activity log what was done to a queue.
    fn note(&self, action: &str, name: &str) {
        let entry = Entry::new(Actor::of(Some(&self.caller), "sqs"), Via::Api, action);
        self.door.activity.add(entry.queue(name));
    }
}

fn write(reply: &impl Serialize) -> Reply {
    serde_json::to_vec(reply)
        .map_err(|e| Fault::new(Code::InternalFailure, format!("The answer could not be written: {e}")))
}

/// The answer of an action that has nothing to say.
fn nothing() -> Vec<u8> {
    b"{}".to_vec()
}

/// Makes a number for a request, by which SDKs name it in their logs.
fn request_id() -> HeaderValue {
    let (high, low) = (fastrand::u64(..), fastrand::u64(..));
    let text = format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    );
    HeaderValue::from_str(&text).expect("invariant: digits are a value")
}

/// Returns whether an address names an action, as those of the Query protocol do. No page has such a field.
fn has_action(uri: &Uri) -> bool {
    uri.query().unwrap_or_default().split('&').any(|field| field.starts_with("Action="))
}

/// Answers a client of the Query protocol in its own form, so that it can show why.
fn old_protocol() -> Response {
    let xml = "<?xml version=\"1.0\"?><ErrorResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><Error><Type>Sender</Type>\
        <Code>InvalidAction</Code><Message>This server speaks the JSON protocol of SQS, and the request is one of the older Query \
        protocol. Use a newer SDK: boto3 1.28.82, SDK for JavaScript 3.447, SDK for Java 2.21.19, SDK for Go v2 sqs 1.28, or later.\
        </Message></Error></ErrorResponse>\n";
    (
        StatusCode::BAD_REQUEST,
        [(CONTENT_TYPE, HeaderValue::from_static("text/xml"))],
        [(REQUEST_ID, request_id())],
        xml,
    )
        .into_response()
}
