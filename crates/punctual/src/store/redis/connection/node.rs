//! Where one server listens.

use std::{fmt, path::PathBuf};

use redis::ConnectionAddr;

/// A server's place: as an address names it, or another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Node {
    /// `host:port`, where a host of IPv6 may or may not stand in brackets: servers write it without.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        (!host.is_empty()).then_some(())?;
        Some(Self::Tcp(host.to_owned(), port.parse().ok().filter(|port| *port != 0)?))
    }

    /// The same host, another port.
    pub(crate) fn beside(&self, port: u16) -> Self {
        match self {
            Self::Tcp(host, _) => Self::Tcp(host.clone(), port),
            // A server behind a socket is on this machine.
            Self::Unix(_) => Self::Tcp("localhost".to_owned(), port),
        }
    }
}

impl TryFrom<&ConnectionAddr> for Node {
    type Error = ();

    fn try_from(address: &ConnectionAddr) -> Result<Self, ()> {
        match address {
            ConnectionAddr::Tcp(host, port) => Ok(Self::Tcp(host.clone(), *port)),
            ConnectionAddr::Unix(path) => Ok(Self::Unix(path.clone())),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_servers_write_it() {
        for (text, expected) in [
            ("10.0.0.7:6381", Some(Node::Tcp("10.0.0.7".into(), 6_381))),
            ("::1:6381", Some(Node::Tcp("::1".into(), 6_381))),
            ("[::1]:6381", Some(Node::Tcp("::1".into(), 6_381))),
            ("cache.example:1", Some(Node::Tcp("cache.example".into(), 1))),
            (":6381", None),
            ("cache:0", None),
            ("cache:x", None),
            ("cache", None),
        ] {
            assert_eq!(Node::parse(text), expected, "{text}");
        }
        assert_eq!(Node::parse("::1:6381").unwrap().to_string(), "[::1]:6381");
    }
}
