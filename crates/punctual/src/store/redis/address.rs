//! Where a server is and how it is to be used, as one URL says it. No secret of it is ever shown.

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::error::{Error, ErrorKind, Result};

/// What each key begins with unless the address says otherwise.
const PREFIX: &str = "pq";
const PREFIX_BYTES_MAX: usize = 64;
/// More replicas than this wait for nobody.
const REPLICAS_MAX: u8 = 32;

/// A server, and what is particular about the store on it:
///
/// ```text
/// redis://[user[:password]@]host[:port][/db]     [?durability=fast|full|replicated(n)&prefix=pq]
/// redis+unix:///path/to.sock[?db=0&user=…&pass=…][&durability=…&prefix=…]
/// ```
#[derive(Clone, Debug)]
pub(super) struct Address {
    info: ConnectionInfo,
    durability: Wanted,
    prefix: String,
}

/// The level of durability that an address asks for (S1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The server's memory has it.
    #[default]
    Fast,
    /// The server's disk has it.
    Full,
    /// So many replicas have it, too.
    Replicated(u8),
}

impl Wanted {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "fast" => Some(Self::Fast),
            "full" => Some(Self::Full),
            _ => {
                let n: u8 = text.strip_prefix("replicated(")?.strip_suffix(')')?.parse().ok()?;
                (1..=REPLICAS_MAX).contains(&n).then_some(Self::Replicated(n))
            }
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fast => f.write_str("fast"),
            Self::Full => f.write_str("full"),
            Self::Replicated(n) => write!(f, "replicated({n})"),
        }
    }
}

impl Address {
    /// Reads a URL. Errors name the part that can't be read and never the whole, which may hold a password.
    ///
    /// # Errors
    /// `Unsupported` for `rediss:`, which this build can't speak; `Invalid` for whatever else can't be read.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut url = redis::parse_redis_url(text).ok_or_else(unreadable)?;
        let is_socket = match url.scheme() {
            "redis" => false,
            "redis+unix" => true,
            "rediss" => {
                return Err(Error::new(ErrorKind::Unsupported, "this build can't speak TLS")
                    .with_hint("write redis://, through a tunnel where the network is not trusted"));
            }
            _ => return Err(unreadable()),
        };
        if url.fragment().is_some() {
            return Err(Error::invalid("a redis: store knows nothing behind a #")
                .with_hint("write a # in a password as %23"));
        }
        let (mut durability, mut prefix, mut rest) = (Wanted::default(), PREFIX.to_owned(), Vec::new());
        for (key, value) in url.query_pairs() {
            match &*key {
                "durability" => {
                    durability = Wanted::parse(&value).ok_or_else(|| {
                        Error::invalid(format!("{:?} is no durability of a redis: store", shown(&value)))
                            .with_hint("write durability=fast, full, or replicated(n) with n from 1 to 32")
                    })?;
                }
                "prefix" => prefix = check_prefix(&value)?,
                "db" | "user" | "pass" if is_socket => rest.push((key.into_owned(), value.into_owned())),
                _ => {
                    return Err(Error::invalid(format!("{:?} is no option of a redis: store", shown(&key)))
                        .with_hint(
                            "write durability=… or prefix=…; the database is the path: redis://host/0",
                        ));
                }
            }
        }
        url.set_query(None);
        if !rest.is_empty() {
            url.query_pairs_mut().extend_pairs(rest);
        }
        // Its own words name a part and what is wrong with it, never the text.
        let info = url.into_connection_info().map_err(|e| unreadable().with_source(e))?;
        if info.redis_settings().db() < 0 {
            return Err(unreadable());
        }
        let settings = info.redis_settings().clone().set_lib_name("punctual", env!("CARGO_PKG_VERSION"));
        Ok(Self { info: info.set_redis_settings(settings), durability, prefix })
    }

    /// Where to connect to, and as whom.
    pub(super) const fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// What `Ok` is to survive.
    pub(super) const fn durability(&self) -> Wanted {
        self.durability
    }

    /// A key of the store. No prefix has braces, so that these keep all keys on one server of a cluster.
    pub(super) fn key(&self, name: &str) -> Vec<u8> {
        [&self.prefix, ":{0}:", name].concat().into_bytes()
    }

    /// Where a queue's bell is.
    pub(super) fn bell(&self, queue: &str) -> Vec<u8> {
        self.key(&["w:", queue].concat())
    }
}

/// As `Store::url` shows it: without user and password, and without what goes without saying.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let db = self.info.redis_settings().db();
        let mut options = Vec::new();
        match self.info.addr() {
            ConnectionAddr::Unix(path) => {
                write!(f, "redis+unix://{}", path.display())?;
                if db != 0 {
                    options.push(format!("db={db}"));
                }
            }
            ConnectionAddr::Tcp(host, port) if host.contains(':') => {
                write!(f, "redis://[{host}]:{port}/{db}")?;
            }
            other => write!(f, "redis://{other}/{db}")?,
        }
        if self.durability != Wanted::default() {
            options.push(format!("durability={}", self.durability));
        }
        if self.prefix != PREFIX {
            options.push(format!("prefix={}", self.prefix));
        }
        if options.is_empty() { Ok(()) } else { write!(f, "?{}", options.join("&")) }
    }
}

fn unreadable() -> Error {
    Error::invalid("could not read the address of a redis: store").with_hint(
        "write redis://user:password@host:6379/0 with %-escapes in the password, or redis+unix:///path",
    )
}

fn check_prefix(text: &str) -> Result<String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
    if !text.is_empty() && text.len() <= PREFIX_BYTES_MAX && is_plain {
        return Ok(text.to_owned());
    }
    Err(Error::invalid(format!("{:?} can't be the prefix of keys", shown(text)))
        .with_hint("write 1 to 64 ASCII letters, digits, and - _ . :"))
}

/// The beginning of what somebody wrote.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_secrets() {
        for (text, expected) in [
            ("redis://cache", "redis://cache:6379/0"),
            ("redis://ana:secret@cache:7000/3", "redis://cache:7000/3"),
            ("redis://:secret@[::1]/", "redis://[::1]:6379/0"),
            ("redis://cache?durability=fast&prefix=pq", "redis://cache:6379/0"),
            ("redis://cache/1?prefix=shop:jobs", "redis://cache:6379/1?prefix=shop:jobs"),
            ("redis://cache?durability=replicated(2)", "redis://cache:6379/0?durability=replicated(2)"),
            ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
            (
                "redis+unix:///run/redis.sock?db=2&user=ana&pass=secret&durability=full",
                "redis+unix:///run/redis.sock?db=2&durability=full",
            ),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(address.to_string(), expected, "{text}");
            assert!(!format!("{address:?}").contains("secret"), "{address:?}");
        }
    }

    #[test]
    fn what_is_shown_is_an_address_again() {
        for text in ["redis://[::1]:7000/2?durability=full&prefix=a.b", "redis+unix:///s?db=2&prefix=x"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn all_parts_are_read() {
        let address =
            Address::parse("redis://a%40b:p%23%2F%3A@cache:7000/3?durability=replicated(32)&prefix=x")
                .unwrap();
        let settings = address.info().redis_settings();
        assert_eq!(settings.username(), Some("a@b"));
        assert_eq!(settings.password(), Some("p#/:"));
        assert_eq!(settings.db(), 3);
        assert_eq!(*address.info().addr(), ConnectionAddr::Tcp("cache".into(), 7_000));
        assert_eq!((address.durability(), address.prefix.as_str()), (Wanted::Replicated(32), "x"));

        let address = Address::parse("redis+unix:///a%20b.sock?user=u&pass=p%26w").unwrap();
        let settings = address.info().redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("u"), Some("p&w")));
        assert_eq!(*address.info().addr(), ConnectionAddr::Unix("/a b.sock".into()));
        assert_eq!((address.durability(), address.prefix.as_str()), (Wanted::Fast, "pq"));
    }

    #[test]
    fn what_is_unknown_is_refused_without_a_word_of_the_secret() {
        for text in [
            "",
            "redis:",
            "redis://",
            "redis:///0",
            "redis://:secret@/0",
            "redis://secret:@cache/x",
            "redis://cache/-1",
            "redis://:secret@cache:port",
            "redis://:secret@cache/0/1",
            "redis://:secret@cache/#insecure",
            "redis://:secret@cache?timeout=1",
            "redis://:secret@cache?db=1",
            "redis://:secret@cache?durability=none",
            "redis://cache?durability=replicated(0)",
            "redis://cache?durability=replicated(33)",
            "redis://cache?durability=replicated",
            "redis://cache?prefix=",
            "redis://cache?prefix={a}",
            "redis://cache?prefix=a%20b",
            "unix:///run/redis.sock",
            "redis+unix:relative.sock?pass=secret&db=x",
            "redis+unix:///run/redis.sock?pass=secret&db=x",
            "redis+unix:///run/redis.sock?port=1",
            "valkey://cache",
        ] {
            let error = Address::parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.hint().is_some(), "{text}");
            assert!(!format!("{error:?} {error}").contains("secret"), "{error:?}");
        }
        let long = format!("redis://cache?prefix={}", "x".repeat(PREFIX_BYTES_MAX + 1));
        assert_eq!(Address::parse(&long).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Address::parse("rediss://:secret@cache").unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
