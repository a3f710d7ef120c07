//! The one place that decides who a caller is and what it may do.
//!
//! A [`Gate`] stands in front of a router as a [layer](Gate::layer). For each request it finds the [`Caller`], by a
//! token in `Authorization: Bearer`, a user that a trusted proxy names, or the session cookie. Then it compares the
//! caller's role with what the route [needs](Needs). A route that the table of the router does not have needs an admin.
//!
//! While a store has no token, programs on the same machine are admins, and nobody else is let in. From the first token
//! on, each request needs one.
//!
//! It never answers for a handler: a handler that acts on a queue asks [`Caller::may`] with its name.

mod guesses;
mod layer;
mod proxy;
mod refusal;
mod request;
mod rights;
#[cfg(feature = "sqs")]
mod signature;
#[cfg(feature = "sqs")]
mod signed;
mod tokens;

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::http::request::Parts;
use punctual::Client;

pub(crate) use self::rights::asked_as;
#[cfg(feature = "sqs")]
pub(crate) use self::signed::{Unsigned, region};
use self::{
    guesses::Guesser,
    request::Site,
    rights::Need,
    tokens::{Shown, Tokens},
};
pub use self::{
    layer::{GateLayer, Gated},
    proxy::Proxy,
    refusal::Refusal,
    rights::{Caller, Needs, Right, Rights},
};
use crate::token::Role;

/// The cookie that holds the session of a browser. Over TLS its name begins with `__Host-`, so that no other host and no request without TLS
/// can set it.
pub const SESSION_COOKIE: &str = "punctual_session";
/// How long a token is believed without a look at the store: a revoked one is refused within this time.
pub const BELIEVED_FOR: Duration = Duration::from_secs(1);
/// The names under which a program on the same machine reaches a server.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Decides who a caller is and what it may do. Clones share what they know of tokens.
///
/// ```
/// # use axum::{Extension, Router, http::Method, routing::get};
/// # use punctual_server::gate::{Caller, Gate, Needs, Right};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = punctual::Client::connect("memory:").await?;
/// fn rights(method: &Method, path: &str) -> Option<Needs> {
///     match (method, path) {
///         (_, "/healthz") => Some(Needs::PUBLIC),
///         (&Method::GET, "/api/v1/stats") => Some(Right::Read.in_store()),
///         _ => None, // needs an admin
///     }
/// }
///
/// let router: Router = Router::new()
///     .route("/api/v1/stats", get(|Extension(caller): Extension<Caller>| async move { caller.name }))
///     .layer(Gate::new(&client).layer(rights));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Gate {
    config: Arc<Config>,
    tokens: Option<Arc<Tokens>>,
}

#[derive(Clone, Debug, Default)]
struct Config {
    hosts: Vec<String>,
    /// The path under which browsers reach the router, without slashes at its ends.
    base: String,
    proxy: Option<Proxy>,
}

impl Gate {
    /// Makes a gate without tokens: programs on the same machine are admins, and nobody else is let in.
    pub fn open() -> Self {
        Self { config: Arc::default(), tokens: None }
    }

    /// Makes a gate with the tokens of a store.
    ///
    /// While the store has none, it works as [`open`](Self::open).
    pub fn new(client: &Client) -> Self {
        Self { config: Arc::default(), tokens: Some(Arc::new(Tokens::new(client.clone()))) }
    }

    /// Accepts this name, without a port, in the header `Host` of requests without a token. May be called several
    /// times.
    ///
    /// Always accepted are `localhost`, `127.0.0.1` and `[::1]`. Other names are refused, so that a page on another
    /// site cannot reach the server by a name of its own that leads to this machine. With a token every name is
    /// accepted.
    #[must_use]
    pub fn host(mut self, name: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.config).hosts.push(name.into());
        self
    }

    /// Says under which path browsers reach the router (default: `/`). Servers under several paths of one host have cookies of their own.
    #[must_use]
    pub fn base_path(mut self, path: &str) -> Self {
        path.trim_matches('/').clone_into(&mut Arc::make_mut(&mut self.config).base);
        self
    }

    /// Trusts a proxy that names its users.
    ///
    /// Requests from its addresses are never taken for those of the same machine.
    #[must_use]
    pub fn proxy(mut self, proxy: Proxy) -> Self {
        Arc::make_mut(&mut self.config).proxy = Some(proxy);
        self
    }

    /// Puts the gate in front of a router.
    ///
    /// `rights` says what each route needs; a route that it does not know needs an admin. Inside a router that is
    /// nested, paths are those after the prefix. Requests need the address of the peer: [`axum::extract::ConnectInfo`]
    /// of a `SocketAddr`, as `into_make_service_with_connect_info` adds it. A request without it is refused while there
    /// are no tokens.
    pub fn layer(&self, rights: Rights) -> GateLayer {
        GateLayer::new(self.clone(), rights)
    }

    /// Finds the caller of a request, and checks that it may use a route. `None` for a public route.
    async fn admit(&self, parts: &Parts, needs: Needs) -> Result<Option<Caller>, Refusal> {
        match needs.0 {
            Need::Nothing => {
                // A login or logout, too, must not be sent by another page.
                if request::changes(&parts.method) && request::site(parts, &self.config.hosts) == Site::Other
                {
                    return Err(Refusal::cross_site());
                }
                Ok(None)
            }
            Need::Store(_) | Need::Queues(_) => {
                let caller = self.authenticate(parts).await?;
                caller.meets(needs)?;
                Ok(Some(caller))
            }
        }
    }

    /// Finds the caller of a request.
    ///
    /// Looks for a token in `Authorization: Bearer`, then for the user that a trusted proxy names, then for the session
    /// cookie. Without a token in its header, a request must not come from a page of another site, unless a person follows a link there:
    /// browsers add cookies by themselves.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// A refusal: 401 without a valid token, 403 for a page of another site, 421 for a foreign `Host`, 503 if the
    /// store does not answer.
    pub async fn authenticate(&self, parts: &Parts) -> Result<Caller, Refusal> {
        let peer = request::peer(parts);
        let proxy = self.config.proxy.as_ref().filter(|proxy| proxy.is_at(peer));
        let user = proxy.and_then(|proxy| Some((proxy, proxy.user(parts)?)));
        // A proxy can pass on how its users have logged in there, which is no token of this server.
        if (user.is_none() || request::has_token(&parts.headers))
            && let Some(token) = request::bearer(&parts.headers)?
        {
            return match &self.tokens {
                Some(tokens) => tokens.look_up(Shown::Token(token), self.guesser(parts)).await,
                None => self.local(parts, peer),
            };
        }
        if let Some((proxy, user)) = user {
            // Without a name of its own the server cannot tell a page that reaches it by another name.
            if !self.config.hosts.is_empty() && !self.is_named(parts) {
                return Err(Refusal::host());
            }
            self.same_site(parts, true)?;
            let mut caller = Caller::new(user, proxy.role);
            caller.payloads_hidden = proxy.hides_payloads;
            return Ok(caller);
        }
        let Some(tokens) = &self.tokens else { return self.local(parts, peer) };
        let refusal = match self.session(parts) {
            Some(session) => match tokens.look_up(Shown::Session(session), self.guesser(parts)).await {
                Ok(caller) => {
                    self.same_site(parts, false)?;
                    return Ok(caller);
                }
                Err(refusal) => refusal,
            },
            None => Refusal::unauthenticated(
                "the request has no token",
                "send one as Authorization: Bearer pt_…; punctual token new NAME --role ROLE    makes one",
            ),
        };
        // A browser keeps the cookie of a token that was revoked, even if it was the last one.
        if refusal.code == "unauthenticated" && !tokens.any().await? {
            return self.local(parts, peer);
        }
        Err(refusal)
    }

    /// Begins a session of the caller that a token belongs to, for a form in which a person logs in. Returns the value of `Set-Cookie` for the answer.
    ///
    /// A session lasts for 7 days, or until [`log_out`](Self::log_out) or the end of its token. The browser forgets it when it ends. Wrong tokens
    /// count as in [`authenticate`](Self::authenticate).
    ///
    /// If the future is dropped, a session that nobody knows may have begun.
    ///
    /// # Errors
    /// As [`authenticate`](Self::authenticate).
    pub async fn log_in(&self, parts: &Parts, token: &str) -> Result<String, Refusal> {
        if request::site(parts, &self.config.hosts) == Site::Other {
            return Err(Refusal::cross_site());
        }
        let Some(tokens) = &self.tokens else {
            return Err(Refusal::unauthenticated(
                "this server has no tokens",
                "use it on its own machine, without a token",
            ));
        };
        let session = tokens.log_in(token.trim(), self.guesser(parts)).await?;
        Ok(self.cookie(&session, request::is_secure(parts)))
    }

    /// Ends the session of a browser. Returns the value of `Set-Cookie` for the answer. Servers refuse the session within 1 s.
    ///
    /// If the future is dropped, the session may have ended. It is safe to repeat the call.
    ///
    /// # Errors
    /// 503 if the store does not answer: the session goes on.
    pub async fn log_out(&self, parts: &Parts) -> Result<String, Refusal> {
        if let (Some(tokens), Some(session)) = (&self.tokens, self.session(parts)) {
            tokens.log_out(session).await?;
        }
        Ok(self.cookie("", request::is_secure(parts)) + "; Max-Age=0")
    }

    /// The session that a browser shows. One that was given over TLS is shown over TLS.
    fn session<'a>(&self, parts: &'a Parts) -> Option<&'a str> {
        request::session(&parts.headers, &self.cookie_name(request::is_secure(parts)))
    }

    /// The name of the cookie. Over TLS its path is that of the whole host, so the name has the base path.
    fn cookie_name(&self, is_secure: bool) -> String {
        if !is_secure {
            return SESSION_COOKIE.to_owned();
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let base = &self.config.base;
        let of_base: String = base.chars().take(1).map(|_| '-').chain(base.chars().map(plain)).collect();
        format!("__Host-{SESSION_COOKIE}{of_base}")
    }

    /// The value of `Set-Cookie`. The cookie lasts until the browser ends.
    fn cookie(&self, session: &str, is_secure: bool) -> String {
        let name = self.cookie_name(is_secure);
        if is_secure {
            return format!("{name}={session}; HttpOnly; SameSite=Strict; Path=/; Secure");
        }
        format!("{name}={session}; HttpOnly; SameSite=Strict; Path=/{}", self.config.base)
    }

    /// Refuses a request of a page of another site, unless a person follows a link there. Each other one is work that the visitor did not ask for. A
    /// request that does not say where it comes from is no browser's, except one with a cookie.
    fn same_site(&self, parts: &Parts, unsaid_is_fine: bool) -> Result<(), Refusal> {
        let changes = request::changes(&parts.method);
        match request::site(parts, &self.config.hosts) {
            Site::Same => Ok(()),
            Site::Unsaid if unsaid_is_fine || !changes => Ok(()),
            Site::Other if !changes && request::is_navigation(parts) => Ok(()),
            Site::Unsaid | Site::Other => Err(Refusal::cross_site()),
        }
    }

    /// The caller of a request without a token, while there are none.
    fn local(&self, parts: &Parts, peer: Option<IpAddr>) -> Result<Caller, Refusal> {
        let is_proxy = self.config.proxy.as_ref().is_some_and(|proxy| proxy.is_at(peer));
        let is_local = peer.is_some_and(|peer| peer.is_loopback());
        if !is_local || is_proxy || request::is_forwarded(&parts.headers) {
            return Err(Refusal::unauthenticated(
                "the server has no tokens, so it answers only programs on its own machine",
                "make a token there: punctual token new NAME --role admin",
            ));
        }
        if !self.is_named(parts) {
            return Err(Refusal::host());
        }
        self.same_site(parts, true)?;
        Ok(Caller::new("local", Role::Admin))
    }

    /// Whether the client asks for this server by one of its names.
    fn is_named(&self, parts: &Parts) -> bool {
        let named = self.config.hosts.iter().map(String::as_str);
        let is_named = |host: &str| named.chain(LOCAL_NAMES).any(|name| name.eq_ignore_ascii_case(host));
        request::host(parts).is_some_and(is_named)
    }

    /// Whose guesses the request counts with.
    fn guesser(&self, parts: &Parts) -> Guesser {
        let peer = request::peer(parts);
        let is_proxy = self.config.proxy.as_ref().is_some_and(|proxy| proxy.is_at(peer));
        let client = || request::client_of_proxy(&parts.headers);
        Guesser::from(if is_proxy { client().or(peer) } else { peer })
    }
}
