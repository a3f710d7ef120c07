//! A proxy that names its users.

use std::net::IpAddr;

use axum::http::{HeaderName, request::Parts};
use ipnet::IpNet;
use punctual::Error;

use crate::token::Role;

/// Longest name of a user, in bytes.
const USER_BYTES_MAX: usize = 255;

/// A proxy in front of the server that has authenticated its users and names them in a header.
///
/// The header counts only from the addresses of the proxy. The proxy must remove it from the requests that it gets.
///
/// ```
/// # use punctual_server::{gate::{Gate, Proxy}, token::Role};
/// let proxy = Proxy::new(["10.0.0.0/8", "192.0.2.7"], Role::Operate)?.header("x-remote-user")?;
/// let gate = Gate::open().proxy(proxy);
/// # punctual::Result::<()>::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Proxy {
    from: Vec<IpNet>,
    header: HeaderName,
    pub(super) role: Role,
    pub(super) hides_payloads: bool,
}

impl Proxy {
    /// Trusts proxies at these addresses or networks. Each of their users has `role`.
    ///
    /// # Errors
    /// `Invalid` for a text that is neither.
    pub fn new<'a>(from: impl IntoIterator<Item = &'a str>, role: Role) -> punctual::Result<Self> {
        let parse = |text: &str| {
            let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
            text.parse::<IpNet>().ok().or_else(address).ok_or_else(|| {
                Error::invalid(format!("{text:?} is neither an address nor a network"))
                    .with_hint("write 192.0.2.7, 10.0.0.0/8 or fd00::/8")
            })
        };
        let from = from.into_iter().map(parse).collect::<punctual::Result<_>>()?;
        let header = HeaderName::from_static("x-forwarded-user");
        Ok(Self { from, header, role, hides_payloads: false })
    }

    /// Reads the name of the user from this header (default: `x-forwarded-user`).
    ///
    /// # Errors
    /// `Invalid` for a text that is no name of a header.
    pub fn header(mut self, name: &str) -> punctual::Result<Self> {
        self.header = name
            .to_ascii_lowercase()
            .parse()
            .map_err(|e| Error::invalid(format!("{name:?} is not the name of a header")).with_source(e))?;
        Ok(self)
    }

    /// Hides payloads, results and headers of jobs from its users.
    #[must_use]
    pub const fn hide_payloads(mut self) -> Self {
        self.hides_payloads = true;
        self
    }

    pub(super) fn is_at(&self, peer: Option<IpAddr>) -> bool {
        peer.is_some_and(|peer| self.from.iter().any(|net| net.contains(&peer)))
    }

    /// The user that the proxy names. Two headers, or a name that is no text, name nobody.
    pub(super) fn user<'a>(&self, parts: &'a Parts) -> Option<&'a str> {
        let mut headers = parts.headers.get_all(&self.header).iter();
        let (user, None) = (headers.next()?, headers.next()) else { return None };
        let user = user.to_str().ok()?.trim();
        (!user.is_empty() && user.len() <= USER_BYTES_MAX).then_some(user)
    }
}
