//! A server to listen to, without a socket.

use std::net::SocketAddr;

use axum::{
    Router,
    body::{Body, BodyDataStream, to_bytes},
    extract::ConnectInfo,
    http::{Request, StatusCode},
    response::Response,
};
use futures_util::StreamExt as _;
use punctual::{CancellationToken, Client};
use punctual_server::{DashboardOptions, Server, dashboard, gate::Gate};
use tower::ServiceExt as _;

pub(crate) struct Site(Router);

/// An open stream of events.
pub(crate) struct Stream(BodyDataStream);

impl Site {
    /// A server with its gate.
    pub(crate) fn new(client: &Client, stop: &CancellationToken) -> Self {
        Self(Server::new(client).router(stop))
    }

    /// A server with another gate.
    pub(crate) fn with_gate(client: &Client, gate: Gate) -> Self {
        Self(Server::new(client).gate(gate).router(&CancellationToken::new()))
    }

    /// A dashboard without a gate.
    pub(crate) fn dashboard(client: &Client, options: DashboardOptions) -> Self {
        Self(dashboard(client, options))
    }

    async fn send(&self, path: &str, token: Option<&str>) -> Response {
        let mut request = Request::builder().uri(path).header("host", "localhost");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 4_000))));
        self.0.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn listen(&self, token: Option<&str>) -> Stream {
        self.listen_at("/events", token).await
    }

    pub(crate) async fn listen_at(&self, path: &str, token: Option<&str>) -> Stream {
        let answer = self.send(path, token).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Stream(answer.into_body().into_data_stream())
    }

    /// A page.
    pub(crate) async fn get(&self, path: &str, token: Option<&str>) -> (StatusCode, String) {
        let answer = self.send(path, token).await;
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), 1_000_000).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    pub(crate) async fn refused(&self, token: Option<&str>) -> (StatusCode, String) {
        self.refused_at("/events", token).await
    }

    pub(crate) async fn refused_at(&self, path: &str, token: Option<&str>) -> (StatusCode, String) {
        let answer = self.send(path, token).await;
        let status = answer.status();
        assert_ne!(status, StatusCode::OK);
        let bytes = to_bytes(answer.into_body(), 100_000).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }
}

impl Stream {
    /// The next piece: an event or a comment.
    pub(crate) async fn next(&mut self) -> Option<String> {
        let piece = self.0.next().await?.unwrap();
        Some(String::from_utf8(piece.to_vec()).unwrap())
    }

    /// The name and the data of the next event of any name.
    pub(crate) async fn named(&mut self) -> (String, String) {
        loop {
            let piece = self.next().await.expect("the stream ended");
            if let Some((name, data)) = piece.strip_prefix("event: ").and_then(|it| it.split_once("\ndata: "))
            {
                return (name.to_owned(), data.trim_end().to_owned());
            }
        }
    }

    /// The data of the next change.
    pub(crate) async fn event(&mut self) -> String {
        loop {
            let piece = self.next().await.expect("the stream ended");
            if let Some(data) = piece.strip_prefix("event: change\ndata: ") {
                return data.trim_end().to_owned();
            }
        }
    }
}
