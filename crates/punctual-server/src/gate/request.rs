//! What a request says of itself, before anything of it is believed.

use std::net::{IpAddr, SocketAddr};

use axum::{
    extract::ConnectInfo,
    http::{
        HeaderMap, HeaderName, Method,
        header::{AUTHORIZATION, COOKIE, FORWARDED, HOST, ORIGIN, VIA},
        request::Parts,
    },
};

use super::Refusal;
use crate::accept::Encrypted;

/// Headers that proxies add. A request with one of them may come from anywhere, however near its peer is.
const OF_PROXIES: [HeaderName; 5] = [
    FORWARDED,
    VIA,
    X_FORWARDED_FOR,
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-real-ip"),
];
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The address at the other end of the connection.
pub(super) fn peer(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip().to_canonical())
}

/// The client of the last proxy, as that proxy says it.
pub(super) fn client_of_proxy(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers.get_all(X_FORWARDED_FOR).iter().next_back()?.to_str().ok()?;
    last.rsplit(',').next()?.trim().parse().ok()
}

pub(super) fn is_forwarded(headers: &HeaderMap) -> bool {
    OF_PROXIES.iter().any(|name| headers.contains_key(name))
}

/// The token of `Authorization: Bearer`.
///
/// # Errors
/// For another scheme, or several headers.
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let is_only = headers.get_all(AUTHORIZATION).iter().nth(1).is_none();
    let parsed = value.to_str().ok().and_then(|text| text.split_once(' ')).filter(|_| is_only);
    match parsed {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        _ => Err(Refusal::unauthenticated(
            "the Authorization header has no token",
            "send one header: Authorization: Bearer pt_…",
        )),
    }
}

/// Whether `Authorization` has a token of this server, and not something that a proxy has passed on.
pub(super) fn has_token(headers: &HeaderMap) -> bool {
    let mut texts = headers.get_all(AUTHORIZATION).iter().filter_map(|value| value.to_str().ok());
    texts.any(|text| text.split_once(' ').is_some_and(|(_, token)| token.trim().starts_with("pt_")))
}

/// The value of the session cookie of this name.
pub(super) fn session<'a>(headers: &'a HeaderMap, cookie: &str) -> Option<&'a str> {
    let texts = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == cookie).map(|(_, value)| value).filter(|value| !value.is_empty())
}

/// The name of the server that the client asks for, without its port: HTTP/1 has it in a header, HTTP/2 in the address.
pub(super) fn host(parts: &Parts) -> Option<&str> {
    authority(parts).map(without_port)
}

fn authority(parts: &Parts) -> Option<&str> {
    let mut headers = parts.headers.get_all(HOST).iter();
    match (headers.next(), headers.next()) {
        (Some(host), None) => host.to_str().ok(),
        (Some(_), Some(_)) => None,
        (None, _) => parts.uri.authority().map(axum::http::uri::Authority::as_str),
    }
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.is_empty() => {
            // A bare address of IPv6 is not a host.
            if host.contains(':') && !host.ends_with(']') { authority } else { host }
        }
        _ => authority,
    }
}

/// Where a browser says that a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// A page of this server, or the person themselves.
    Same,
    /// Another page.
    Other,
    /// It does not say. Browsers always say it of requests that change something.
    Unsaid,
}

/// Where the request comes from. `names` are further names of this server, for a proxy that changes the header `Host`.
pub(super) fn site(parts: &Parts, names: &[String]) -> Site {
    // Browsers send it only to https and localhost.
    if let Some(site) = parts.headers.get(SEC_FETCH_SITE) {
        return if matches!(site.as_bytes(), b"same-origin" | b"none") { Site::Same } else { Site::Other };
    }
    let Some(origin) = parts.headers.get(ORIGIN) else { return Site::Unsaid };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let Some((_, origin)) = origin else { return Site::Other };
    let is_own = authority(parts).is_some_and(|host| host.eq_ignore_ascii_case(origin));
    let is_named = names.iter().any(|name| name.eq_ignore_ascii_case(without_port(origin)));
    if is_own || is_named { Site::Same } else { Site::Other }
}

/// Whether a person follows a link: the answer becomes a page of its own, and no other page can read it or show it.
pub(super) fn is_navigation(parts: &Parts) -> bool {
    let says = |name: HeaderName, what: &str| parts.headers.get(name).is_some_and(|value| value == what);
    says(SEC_FETCH_MODE, "navigate") && says(SEC_FETCH_DEST, "document")
}

/// Whether the browser reaches the server over TLS: by itself, or as the proxy in front of it says. A lie only breaks the login of its
/// teller.
pub(super) fn is_secure(parts: &Parts) -> bool {
    parts.extensions.get::<Encrypted>().is_some()
        || parts.headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https")
}

/// Whether a request can change something.
pub(super) fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::post("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_host_has_no_port() {
        for (text, expected) in [
            ("localhost", "localhost"),
            ("localhost:7890", "localhost"),
            ("[::1]:7890", "[::1]"),
            ("[::1]", "[::1]"),
            ("::1", "::1"),
            ("localhost:evil", "localhost:evil"),
            (":80", ":80"),
            ("localhost@evil.example", "localhost@evil.example"),
        ] {
            assert_eq!(host(&parts(&[("host", text)])), Some(expected), "{text}");
        }
        assert_eq!(host(&parts(&[("host", "localhost"), ("host", "evil.example")])), None);
        assert_eq!(host(&parts(&[])), None);
    }

    #[test]
    fn the_session_is_found_among_other_cookies() {
        for (cookies, expected) in [
            (&["a=1; punctual_session=x; b=2"][..], Some("x")),
            (&["a=1", "punctual_session=x"], Some("x")),
            (&["xpunctual_session=x"], None),
            (&["__Host-punctual_session=x"], None),
            (&["punctual_session="], None),
            (&["punctual_session"], None),
        ] {
            let headers: Vec<_> = cookies.iter().map(|cookie| ("cookie", *cookie)).collect();
            assert_eq!(session(&parts(&headers).headers, "punctual_session"), expected, "{cookies:?}");
        }
    }

    #[test]
    fn the_site_is_what_the_browser_says() {
        let host = ("host", "jobs.example:7890");
        for (headers, expected) in [
            (&[host][..], Site::Unsaid),
            (&[host, ("sec-fetch-site", "same-origin")], Site::Same),
            (&[host, ("sec-fetch-site", "none")], Site::Same),
            (&[host, ("sec-fetch-site", "same-site")], Site::Other),
            (&[host, ("sec-fetch-site", "cross-site"), ("origin", "http://jobs.example:7890")], Site::Other),
            (&[host, ("origin", "http://jobs.example:7890")], Site::Same),
            (&[host, ("origin", "http://jobs.example")], Site::Other),
            (&[host, ("origin", "null")], Site::Other),
            (&[host, ("origin", "https://public.example")], Site::Same),
            (&[host, ("origin", "https://evil.example")], Site::Other),
        ] {
            assert_eq!(site(&parts(headers), &["public.example".to_owned()]), expected, "{headers:?}");
        }
    }
}
