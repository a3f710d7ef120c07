//! A server in front of a store in memory, and signed requests to it.

use std::net::SocketAddr;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::ConnectInfo,
    http::Request,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use punctual::{CancellationToken, Client, testing::TestQueue};
use punctual_server::{
    DashboardOptions, Server,
    token::{self, NewToken, Role},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tower::ServiceExt as _;

pub(crate) const HOST: &str = "jobs.example:7890";

/// An access key.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// A request to sign. Each field can be changed to something wrong.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) action: String,
    pub(crate) path: String,
    pub(crate) body: String,
    pub(crate) date: String,
    pub(crate) signed: Vec<&'static str>,
    pub(crate) peer: &'static str,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The header `x-amzn-query-error`.
    pub(crate) error: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) content_type: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{}: {e}", self.text))
    }

    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The code in the header, which must be that of the body.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        let error = self.error.as_deref().unwrap_or_else(|| panic!("no error: {self:?}"));
        let (code, blame) = error.split_once(';').unwrap();
        assert_eq!(blame, if self.status < 500 { "Sender" } else { "Receiver" });
        assert!(self.json()["__type"].as_str().unwrap().contains('#'), "{self:?}");
        code.to_owned()
    }
}

/// A server and its store, with an admin.
pub(crate) struct Site {
    pub(crate) t: TestQueue,
    pub(crate) stop: CancellationToken,
    pub(crate) router: Router,
    pub(crate) admin: Key,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::with(DashboardOptions::default()).await
    }

    pub(crate) async fn with(options: DashboardOptions) -> Self {
        let (t, stop) = (TestQueue::new(), CancellationToken::new());
        let admin = key(&t.client, NewToken::new("ana", Role::Admin)).await;
        let router = Server::new(&t.client).dashboard(options).sqs().router(&stop);
        Self { t, stop, router, admin }
    }

    /// Makes a site with a standard queue `q`.
    pub(crate) async fn with_queue() -> Self {
        let site = Self::new().await;
        site.ask("CreateQueue", json!({"QueueName": "q"})).await.ok();
        site
    }

    pub(crate) fn client(&self) -> &Client {
        &self.t.client
    }

    /// Another server process on the same store.
    pub(crate) fn other(&self) -> Router {
        Server::new(self.client()).sqs().router(&self.stop)
    }

    pub(crate) async fn key(&self, role: Role, queues: Option<&[&str]>) -> Key {
        let queues = queues.map(|queues| queues.iter().map(|&name| name.to_owned()).collect());
        key(self.client(), NewToken { queues, ..NewToken::new("bo", role) }).await
    }

    pub(crate) async fn draft(&self, action: &str, body: &Value) -> Draft {
        let now = self.client().store().now().await.unwrap();
        Draft {
            action: action.to_owned(),
            path: "/".to_owned(),
            body: body.to_string(),
            date: date(now.as_ms()),
            signed: vec!["content-type", "host", "x-amz-date", "x-amz-target"],
            peer: "192.0.2.1:50000",
        }
    }

    /// Makes a request as the admin.
    pub(crate) async fn ask(&self, action: &str, body: Value) -> Answer {
        self.ask_as(&self.admin, action, body).await
    }

    pub(crate) async fn ask_as(&self, key: &Key, action: &str, body: Value) -> Answer {
        let draft = self.draft(action, &body).await;
        send(&self.router, draft.request(key)).await
    }

    /// Makes a request to a server process.
    pub(crate) async fn ask_at(&self, router: &Router, action: &str, body: Value) -> Answer {
        let draft = self.draft(action, &body).await;
        send(router, draft.request(&self.admin)).await
    }

    /// Sends a message to `q`, and returns its id.
    pub(crate) async fn send(&self, text: &str) -> String {
        let sent = self.ask("SendMessage", json!({"QueueUrl": url("q"), "MessageBody": text})).await.ok();
        sent["MessageId"].as_str().unwrap().to_owned()
    }

    /// Receives messages of a queue, with all of their attributes.
    pub(crate) async fn receive(&self, queue: &str, n: usize) -> Vec<Value> {
        let body = json!({
            "QueueUrl": url(queue), "MaxNumberOfMessages": n, "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"], "VisibilityTimeout": 10,
        });
        let received = self.ask("ReceiveMessage", body).await.ok();
        received["Messages"].as_array().cloned().unwrap_or_default()
    }

    /// The bodies of received messages.
    pub(crate) async fn bodies(&self, queue: &str, n: usize) -> Vec<String> {
        self.receive(queue, n).await.iter().map(body).collect()
    }

    pub(crate) async fn delete(&self, queue: &str, message: &Value) {
        let body = json!({"QueueUrl": url(queue), "ReceiptHandle": message["ReceiptHandle"]});
        self.ask("DeleteMessage", body).await.ok();
    }
}

pub(crate) fn body(message: &Value) -> String {
    message["Body"].as_str().unwrap().to_owned()
}

pub(crate) fn url(queue: &str) -> String {
    format!("http://{HOST}/000000000000/{queue}")
}

pub(crate) async fn key(client: &Client, new: NewToken) -> Key {
    let made = token::make(client, &NewToken { signs: true, ..new }, token::random().unwrap()).await.unwrap();
    Key { id: made.token.id, secret: made.secret.access_key() }
}

/// A time as requests have it.
pub(crate) fn date(ms: u64) -> String {
    let at = jiff::Timestamp::from_millisecond(ms.try_into().unwrap()).unwrap();
    at.strftime("%Y%m%dT%H%M%SZ").to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|n| char::from_digit(n.into(), 16).unwrap())
        .collect()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

impl Draft {
    /// Signs the request.
    pub(crate) fn request(&self, key: &Key) -> Request<Body> {
        let target = format!("AmazonSQS.{}", self.action);
        let hash = hex(&Sha256::digest(&self.body));
        let headers = [
            ("content-type", "application/x-amz-json-1.0"),
            ("host", HOST),
            ("x-amz-content-sha256", &hash),
            ("x-amz-date", &self.date),
            ("x-amz-target", &target),
        ];
        let (day, signed) = (&self.date[..8], self.signed.join(";"));
        let own = headers.iter().filter(|(name, _)| self.signed.contains(name));
        let lines: String = own
            .flat_map(|(name, value)| {
                [
                    name, ":", value, "
",
                ]
            })
            .collect();
        let canonical = format!("POST\n{}\n\n{lines}\n{signed}\n{hash}", self.path);
        let scope = format!("{day}/eu-test-1/sqs/aws4_request");
        let hash = hex(&Sha256::digest(canonical));
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{hash}", self.date);
        let mut by = mac(format!("AWS4{}", key.secret).as_bytes(), day);
        for part in ["eu-test-1", "sqs", "aws4_request"] {
            by = mac(&by, part);
        }
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={signed}, Signature={}",
            key.id,
            hex(&mac(&by, &text))
        );
        let mut request = Request::post(&self.path).header("authorization", authorization);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut request = request.body(Body::from(self.body.clone())).unwrap();
        let peer: SocketAddr = self.peer.parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        request
    }
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answer {
    let answer = router.clone().oneshot(request).await.unwrap();
    let header = |name: &str| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (error, request_id) = (header("x-amzn-query-error"), header("x-amzn-requestid"));
    let (status, content_type) = (answer.status().as_u16(), header("content-type").unwrap_or_default());
    let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    Answer { status, error, request_id, content_type, text }
}
