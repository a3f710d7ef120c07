//! Logging in with a browser: the page, the cookie, and what a token must not show.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::net::SocketAddr;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::ConnectInfo,
    http::{Request, Response, StatusCode, header},
};
use punctual::{CancellationToken, Client, NewJob, Payload};
use punctual_server::{
    DashboardOptions, Server,
    token::{self, NewToken, Payloads, Role},
};
use tower::ServiceExt as _;

/// A server under `/q`, and its store.
struct Site {
    client: Client,
    router: Router,
}

impl Site {
    async fn new() -> Self {
        let client = Client::connect("memory:").await.unwrap();
        let options = DashboardOptions { base_path: "/q".to_owned(), ..DashboardOptions::default() };
        let router = Server::new(&client).dashboard(options).router(&CancellationToken::new());
        Self { client, router }
    }

    async fn token(&self, payloads: Payloads) -> String {
        let new = NewToken { payloads, ..NewToken::new("ana", Role::Read) };
        let made = token::make(&self.client, &new, token::random().unwrap()).await.unwrap();
        made.secret.expose().to_owned()
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path).header("host", "jobs.example.com");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::from(body.to_owned())).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 4_000))));
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn log_in(&self, token: &str, site: &str) -> Response<Body> {
        self.send("POST", "/q/login", &[("sec-fetch-site", site)], &format!("token={token}")).await
    }
}

fn header(response: &Response<Body>, name: header::HeaderName) -> &str {
    response.headers().get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn a_person_logs_in_with_a_token_and_out_again() {
    let site = Site::new().await;
    let token = site.token(Payloads::Shown).await;
    let html = [("accept", "text/html")];

    let sent = site.send("GET", "/q/jobs", &html, "").await;
    assert_eq!((sent.status(), header(&sent, header::LOCATION)), (StatusCode::SEE_OTHER, "/q/login"));
    let page = site.send("GET", "/q/login", &html, "").await;
    assert_eq!(page.status(), StatusCode::OK);
    assert!(header(&page, header::CONTENT_SECURITY_POLICY).starts_with("default-src 'none'"));
    assert!(text(page).await.contains(r#"action="/q/login""#));

    let done = site.log_in(&token, "same-origin").await;
    assert_eq!((done.status(), header(&done, header::LOCATION)), (StatusCode::SEE_OTHER, "/q"));
    let cookie = header(&done, header::SET_COOKIE).to_owned();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/q"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let page = site.send("GET", "/q/jobs", &[("accept", "text/html"), ("cookie", cookie)], "").await;
    assert_eq!(page.status(), StatusCode::OK);
    for path in ["/q", "/q/jobs"] {
        let page = site.send("GET", path, &[("accept", "text/html"), ("cookie", cookie)], "").await;
        assert!(text(page).await.contains(r#"action="/q/logout""#), "{path}");
    }

    let out =
        site.send("POST", "/q/logout", &[("sec-fetch-site", "same-origin"), ("cookie", cookie)], "").await;
    assert!(header(&out, header::SET_COOKIE).contains("Max-Age=0"), "{out:?}");
    // A copy of the cookie is worth nothing afterwards.
    let page = site.send("GET", "/q/jobs", &[("accept", "text/html"), ("cookie", cookie)], "").await;
    assert_eq!((page.status(), header(&page, header::LOCATION)), (StatusCode::SEE_OTHER, "/q/login"));
}

#[tokio::test]
async fn a_wrong_token_and_another_site_get_no_cookie() {
    let site = Site::new().await;
    let token = site.token(Payloads::Shown).await;
    let wrong = site.log_in("pt_00000000_00", "same-origin").await;
    assert_eq!((wrong.status(), header(&wrong, header::SET_COOKIE)), (StatusCode::UNAUTHORIZED, ""));
    assert!(text(wrong).await.contains("the token is not valid"));
    let other = site.log_in(&token, "cross-site").await;
    assert_eq!((other.status(), header(&other, header::SET_COOKIE)), (StatusCode::FORBIDDEN, ""));
    let empty = site.send("POST", "/q/login", &[("sec-fetch-site", "same-origin")], "").await;
    assert_eq!(empty.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_token_that_hides_payloads_hides_them_on_pages_too() {
    let site = Site::new().await;
    let job = NewJob::new(site.client.make_id(), "k", "q", Payload::json(r#""sesame""#));
    let id = site.client.push(vec![job]).await.unwrap()[0].id().unwrap();
    for (payloads, shown) in [(Payloads::Shown, true), (Payloads::Hidden, false)] {
        let bearer = format!("Bearer {}", site.token(payloads).await);
        let page = site.send("GET", &format!("/q/jobs/{id}"), &[("authorization", &bearer)], "").await;
        assert_eq!(page.status(), StatusCode::OK);
        assert_eq!(text(page).await.contains("sesame"), shown);
    }
}
