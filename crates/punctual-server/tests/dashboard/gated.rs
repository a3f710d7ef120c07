//! A server with its gate, as callers with tokens see it.

use std::net::SocketAddr;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::ConnectInfo,
    http::{Request, StatusCode},
};
use punctual::{CancellationToken, Client};
use punctual_server::{
    DashboardOptions, Server,
    token::{self, NewToken},
};
use tower::ServiceExt as _;

/// A server, and a caller with a token.
pub(super) struct Gated {
    router: Router,
    token: String,
}

/// What the server answered.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) location: String,
    pub(super) text: String,
}

impl Gated {
    pub(super) async fn new(client: &Client, options: DashboardOptions, new: NewToken) -> Self {
        let made = token::make(client, &new, token::random().unwrap()).await.unwrap();
        let router = Server::new(client).dashboard(options).router(&CancellationToken::new());
        Self { router, token: made.secret.expose().to_owned() }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[]).await
    }

    pub(super) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.send("POST", path, fields).await
    }

    async fn send(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("accept", "text/html")
            .header("authorization", format!("Bearer {}", self.token))
            .header("sec-fetch-site", "same-origin");
        let mut request = request.body(Body::from(body)).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 4_000))));
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let location = answer.headers().get("location").map(|value| value.to_str().unwrap().to_owned());
        let bytes = to_bytes(answer.into_body(), 1_000_000).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { status, location: location.unwrap_or_default(), text }
    }
}
