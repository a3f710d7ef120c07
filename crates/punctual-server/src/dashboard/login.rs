//! The page on which a person gives a token. The browser gets a session, and keeps it as a cookie.

use std::{sync::Arc, time::Duration};

use askama::Template;
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};

use tokio::time::timeout;

use super::{assets::Assets, frame::html, guard, links::Links};
use crate::gate::{Gate, Refusal};

/// Largest body of a login: a token, with room for what a form adds.
const BODY_BYTES_MAX: usize = 4 * 1024;
/// Longest time for it to arrive: anybody can send it.
const BODY_MAX: Duration = Duration::from_secs(30);

/// What the pages need.
#[derive(Debug)]
struct Login {
    gate: Gate,
    links: Links,
    assets: Assets,
}

/// Returns a router for `/login` and `/logout`, which a gate must leave public.
pub(crate) fn login(gate: &Gate, base_path: &str) -> Router {
    let login = Login { gate: gate.clone(), links: Links::new(base_path), assets: Assets::new() };
    Router::new()
        .route("/login", get(async |State(login): State<Arc<Login>>| login.page(None)).post(log_in))
        .route("/logout", post(log_out))
        .layer(middleware::map_response(guard::dressed))
        .with_state(Arc::new(login))
}

/// Answers the refusal of a page: without a valid token, with the way to the login.
pub(crate) fn to_login(base_path: &str, refusal: &Refusal) -> Response {
    if refusal.status == StatusCode::UNAUTHORIZED {
        return guard::dress(Redirect::to(&Links::new(base_path).to("login")).into_response());
    }
    refusal.page()
}

#[derive(Template)]
#[template(path = "login.html")]
struct Page<'a> {
    style: String,
    action: String,
    refusal: Option<&'a Refusal>,
}

impl Login {
    fn page(&self, refusal: Option<&Refusal>) -> Response {
        let style = self.assets.style(&self.links);
        let page = html(&Page { style, action: self.links.to("login"), refusal });
        let status = refusal.map_or(StatusCode::OK, |refusal| refusal.status);
        (status, page).into_response()
    }
}

async fn log_in(State(login): State<Arc<Login>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let token = token(body).await;
    match login.gate.log_in(&parts, &token).await {
        Ok(cookie) => ([(header::SET_COOKIE, cookie)], Redirect::to(&login.links.overview())).into_response(),
        Err(refusal) => login.page(Some(&refusal)),
    }
}

async fn log_out(State(login): State<Arc<Login>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    match login.gate.log_out(&parts).await {
        Ok(cookie) => {
            ([(header::SET_COOKIE, cookie)], Redirect::to(&login.links.to("login"))).into_response()
        }
        Err(refusal) => refusal.page(),
    }
}

/// Reads the token of a form; empty if there is none.
async fn token(body: Body) -> String {
    let Ok(body) = timeout(BODY_MAX, to_bytes(body, BODY_BYTES_MAX)).await else { return String::new() };
    let body = body.unwrap_or_default();
    let token = form_urlencoded::parse(&body).find(|(name, _)| name == "token");
    token.map(|(_, token)| token.into_owned()).unwrap_or_default()
}
