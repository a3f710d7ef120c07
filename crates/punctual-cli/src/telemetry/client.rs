//! Sends requests of the exporter by the HTTP client that stores and webhooks use.
//!
//! The exporter has a thread of its own without a runtime, so requests are sent on the runtime of the command.

use std::{pin::Pin, time::Duration};

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::redirect::Policy;
use tokio::runtime::Handle;

/// Longest time of one request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Largest answer that is read. It only says how many spans were refused.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Client {
    inner: reqwest::Client,
    runtime: Handle,
}

impl Client {
    /// Makes a client for an address. It goes through the proxy that the environment names, unless the collector is on this
    /// machine.
    pub(super) fn new(endpoint: &str) -> Result<Self, reqwest::Error> {
        // Without effect if the program has chosen one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let host = reqwest::Url::parse(endpoint).ok().and_then(|url| url.host_str().map(str::to_owned));
        let is_here = matches!(host.as_deref(), Some("localhost" | "127.0.0.1" | "[::1]"));
        let builder = reqwest::Client::builder()
            .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .timeout(REQUEST_MAX);
        let builder = if is_here { builder.no_proxy() } else { builder };
        Ok(Self { inner: builder.build()?, runtime: Handle::current() })
    }
}

impl HttpClient for Client {
    // As the macro `async_trait` of the trait writes it.
    fn send_bytes<'a, 'f>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        let client = self.inner.clone();
        let sent = self.runtime.spawn(async move { send(&client, request).await });
        Box::pin(async move { sent.await? })
    }
}

async fn send(client: &reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    // The address is in the warning already.
    let mut answer = client.execute(request.try_into()?).await.map_err(reqwest::Error::without_url)?;
    let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if ANSWER_BYTES_MAX < body.len() + chunk.len() {
            break;
        }
        body.extend_from_slice(&chunk);
    }
    let mut response = Response::builder().status(status).body(Bytes::from(body))?;
    *response.headers_mut() = headers;
    Ok(response)
}
