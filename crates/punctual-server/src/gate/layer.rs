//! The gate in front of a router.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    extract::Request,
    http::{header::ACCEPT, request::Parts},
    response::{IntoResponse as _, Response},
};
use tower::{Layer, Service};

use super::{Gate, Needs, Refusal, Rights, asked_as};
use crate::accept::Seat;

/// Answers a refusal to a person. See [`GateLayer::on_page`].
type OnPage = Arc<dyn Fn(&Refusal, &Parts) -> Response + Send + Sync>;

/// The gate in front of a router. [`Gate::layer`] makes it.
#[derive(Clone)]
pub struct GateLayer {
    gate: Gate,
    rights: Rights,
    on_page: OnPage,
}

impl GateLayer {
    pub(super) fn new(gate: Gate, rights: Rights) -> Self {
        Self { gate, rights, on_page: Arc::new(|refusal, _| refusal.page()) }
    }

    /// Answers refusals to people with `page`, for example with a redirect to a login page (default: a small page).
    ///
    /// A request is a person's if it accepts `text/html` and its path does not begin with `/api/`. Other requests get
    /// `application/problem+json`. `page` gets the head of the request.
    ///
    /// ```
    /// # use axum::{http::StatusCode, response::{IntoResponse, Redirect}};
    /// # use punctual_server::gate::{Gate, Needs};
    /// let layer = Gate::open().layer(|_, _| Some(Needs::PUBLIC)).on_page(|refusal, _| match refusal.status {
    ///     StatusCode::UNAUTHORIZED => Redirect::to("login").into_response(),
    ///     _ => refusal.clone().into_response(),
    /// });
    /// ```
    #[must_use]
    pub fn on_page(mut self, page: impl Fn(&Refusal, &Parts) -> Response + Send + Sync + 'static) -> Self {
        self.on_page = Arc::new(page);
        self
    }

    /// Decides on a request. The caller becomes an extension of it.
    async fn decide(&self, parts: &mut Parts) -> Result<(), Refusal> {
        let needs = (self.rights)(asked_as(&parts.method), parts.uri.path()).unwrap_or(Needs::UNKNOWN);
        if let Some(caller) = self.gate.admit(parts, needs).await? {
            parts.extensions.insert(caller);
            if let Some(seat) = parts.extensions.get::<Arc<Seat>>() {
                seat.know();
            }
            // For a handler whose answer lasts longer than the gate believes a token.
            parts.extensions.insert(self.gate.clone());
        }
        Ok(())
    }

    fn refuse(&self, refusal: Refusal, parts: &Parts) -> Response {
        let accepts = parts.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let is_person = accepts.into_iter().any(|text| text.contains("text/html"));
        if is_person && !parts.uri.path().starts_with("/api/") {
            return (self.on_page)(&refusal, parts);
        }
        refusal.into_response()
    }
}

impl fmt::Debug for GateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { layer: self.clone(), inner }
    }
}

/// A service with a gate in front of it. [`GateLayer`] makes it.
#[derive(Clone, Debug)]
pub struct Gated<S> {
    layer: GateLayer,
    inner: S,
}

impl<S> Service<Request> for Gated<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // The service that is ready answers; its clone is the next one.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            match layer.decide(&mut parts).await {
                Ok(()) => inner.call(Request::from_parts(parts, body)).await,
                Err(refusal) => Ok(layer.refuse(refusal, &parts)),
            }
        })
    }
}
