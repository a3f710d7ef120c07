//! The address of a store on Redis: its servers and options in one URL. Its secrets are never shown.

use std::{fmt, path::PathBuf};

use redis::{IntoConnectionInfo, RedisConnectionInfo};

use crate::{
    core::error::{Error, Result},
    store::{
        redis::connection::{node::Node, tls::Files},
        url::with_plain_plus,
    },
};

/// The prefix of all keys (default).
const PREFIX: &str = "pq";
/// The longest prefix, in bytes.
pub const PREFIX_BYTES_MAX: usize = 64;
/// The most replicas to wait for.
pub const REPLICAS_MAX: u8 = 32;
/// The most sentinels or seeds.
pub const NODES_MAX: usize = 32;
/// The default port of sentinels.
pub const SENTINEL_PORT: u16 = 26_379;

/// The servers of a store and its options:
///
/// ```text
/// redis://[user[:password]@]host[:port][/db]                               [?durability=fast|full|replicated(n)&prefix=pq&eviction=allowed]
/// redis+unix:///path/to.sock[?db=0&user=…&pass=…]                          [&…]
/// redis+sentinel://[user[:password]@]host[:26379][,host…]/service[/db]     [?sentinel_user=…&sentinel_pass=…&…]
/// redis+cluster://[user[:password]@]host[:port][,host…]                    [?…]
/// ```
///
/// User and password are for the servers with the data. With `rediss` in place of `redis`, all servers are spoken to
/// over TLS, except one behind a socket. Then `ca=/path` names the trusted certificates, and `cert=/path&key=/path`
/// the client certificate.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    topology: Topology,
    login: RedisConnectionInfo,
    sentinel_login: RedisConnectionInfo,
    durability: Wanted,
    prefix: String,
    allows_eviction: bool,
    tls: Option<Files>,
    /// Whether scripts run without their fast path, so that a test can compare.
    #[cfg(feature = "testing")]
    pub(crate) is_without_fast: bool,
}

/// The topology of a store's servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server.
    Server(Node),
    /// One server at a time is the primary of a service, and sentinels know which.
    Sentinel { sentinels: Vec<Node>, service: String },
    /// Each server has a part of the keys. Some of the servers are named.
    Cluster { seeds: Vec<Node> },
}

/// The durability that an address requests (S1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The write is in the server's memory.
    #[default]
    Fast,
    /// The write is on the server's disk.
    Full,
    /// This many replicas have the write, too.
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

/// The addresses that have an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Having {
    /// All.
    Every,
    /// Those with TLS.
    Tls,
    /// Those of a socket.
    Socket,
    /// Those of sentinels.
    Sentinel,
}

/// Every option of an address, the addresses that have it, and its default.
pub const OPTIONS: [(&str, Having, Option<&str>); 11] = [
    ("durability", Having::Every, Some("fast")),
    ("prefix", Having::Every, Some(PREFIX)),
    ("eviction", Having::Every, None),
    ("ca", Having::Tls, None),
    ("cert", Having::Tls, None),
    ("key", Having::Tls, None),
    ("db", Having::Socket, Some("0")),
    ("user", Having::Socket, None),
    ("pass", Having::Socket, None),
    ("sentinel_user", Having::Sentinel, None),
    ("sentinel_pass", Having::Sentinel, None),
];

/// The scheme of an address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Server,
    Socket,
    Sentinel,
    Cluster,
}

impl Scheme {
    /// Returns whether addresses of this kind have an option. A certificate without TLS has an error of its own.
    fn has(self, option: &str) -> bool {
        OPTIONS.iter().any(|(name, having, _)| {
            *name == option
                && match having {
                    Having::Every | Having::Tls => true,
                    Having::Socket => self == Self::Socket,
                    Having::Sentinel => self == Self::Sentinel,
                }
        })
    }

    const fn port(self) -> Option<u16> {
        match self {
            Self::Sentinel => Some(SENTINEL_PORT),
            _ => None,
        }
    }
}

impl Address {
    /// Parses a URL. Errors name the part that is wrong, never the whole text, which can contain a password.
    ///
    /// # Errors
    /// `Invalid` if it cannot be parsed.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let text = &*with_plain_plus(text);
        let (scheme, rest) = text.split_once(':').ok_or_else(unreadable)?;
        let (scheme, mut tls) = match scheme {
            "redis" => (Scheme::Server, None),
            "redis+unix" => (Scheme::Socket, None),
            "redis+sentinel" => (Scheme::Sentinel, None),
            "redis+cluster" => (Scheme::Cluster, None),
            "rediss" => (Scheme::Server, Some(Files::default())),
            "rediss+sentinel" => (Scheme::Sentinel, Some(Files::default())),
            "rediss+cluster" => (Scheme::Cluster, Some(Files::default())),
            _ => return Err(unreadable()),
        };
        let (first, others) = match scheme {
            Scheme::Server => (format!("redis:{rest}"), Vec::new()),
            Scheme::Socket => (format!("redis+unix:{rest}"), Vec::new()),
            Scheme::Sentinel | Scheme::Cluster => split_hosts(rest)?,
        };
        let mut url = redis::parse_redis_url(&first).ok_or_else(unreadable)?;
        if url.fragment().is_some() {
            return Err(Error::invalid("the address of a redis: store cannot contain #")
                .with_hint("write a # in a password as %23"));
        }
        let (mut durability, mut prefix, mut own) = (Wanted::default(), PREFIX.to_owned(), Vec::new());
        let (mut cert, mut key_file) = (None, None);
        let mut allows_eviction = false;
        for (key, value) in url.query_pairs() {
            match &*key {
                key if !scheme.has(key) => {
                    return Err(Error::invalid(format!("{:?} is not an option of a redis: store", shown(key)))
                        .with_hint(
                            "write durability=…, prefix=… or eviction=allowed; the database is the path: redis://host/0",
                        ));
                }
                "durability" => {
                    durability = Wanted::parse(&value).ok_or_else(|| {
                        Error::invalid(format!("{:?} is not a durability of a redis: store", shown(&value)))
                            .with_hint("write durability=fast, full, or replicated(n) with n from 1 to 32")
                    })?;
                }
                "prefix" => prefix = check_prefix(&value)?,
                "eviction" if value == "allowed" => allows_eviction = true,
                "eviction" => {
                    return Err(Error::invalid(format!(
                        "{:?} is nothing that eviction= may be in the address of a redis: store",
                        shown(&value)
                    ))
                    .with_hint("write eviction=allowed where jobs may be lost, else nothing"));
                }
                "ca" | "cert" | "key" => {
                    let Some(tls) = &mut tls else {
                        return Err(Error::invalid("a certificate is of use only with TLS")
                            .with_hint("write rediss:// instead of redis://"));
                    };
                    let file = match &*key {
                        "ca" => &mut tls.ca,
                        "cert" => &mut cert,
                        _ => &mut key_file,
                    };
                    *file = Some(PathBuf::from(&*value));
                }
                key => own.push((key.to_owned(), value.into_owned())),
            }
        }
        match (&mut tls, cert, key_file) {
            (Some(tls), Some(cert), Some(key)) => tls.own = Some((cert, key)),
            (_, None, None) => {}
            _ => {
                return Err(Error::invalid("a certificate goes with its key")
                    .with_hint("write both cert=/path and key=/path"));
            }
        }
        url.set_query(None);
        let mut service = String::new();
        if scheme == Scheme::Sentinel {
            let path = url.path().to_owned();
            let (name, db) =
                path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
            service = check_service(name)?;
            url.set_path(db);
        }
        if scheme == Scheme::Cluster && !matches!(url.path(), "" | "/" | "/0") {
            return Err(
                Error::invalid("a cluster has one database").with_hint("write redis+cluster://host:6379")
            );
        }
        if scheme == Scheme::Socket && !own.is_empty() {
            url.query_pairs_mut().extend_pairs(&own);
        }
        if url.port().is_none()
            && let Some(port) = scheme.port()
        {
            url.set_port(Some(port)).map_err(|()| unreadable())?;
        }
        // The error of the client names a part and what is wrong with it, never the text.
        let info = url.into_connection_info().map_err(|e| unreadable().with_source(e))?;
        if info.redis_settings().db() < 0 {
            return Err(unreadable());
        }
        let mut nodes = vec![Node::try_from(info.addr()).map_err(|()| unreadable())?];
        for host in others {
            nodes.push(node(&host, scheme)?);
        }
        let topology = match scheme {
            Scheme::Server | Scheme::Socket => Topology::Server(nodes.remove(0)),
            Scheme::Sentinel => Topology::Sentinel { sentinels: nodes, service },
            Scheme::Cluster => Topology::Cluster { seeds: nodes },
        };
        Ok(Self {
            topology,
            login: named(info.redis_settings().clone()),
            sentinel_login: sentinel_login(&own),
            durability,
            prefix,
            allows_eviction,
            tls,
            #[cfg(feature = "testing")]
            is_without_fast: false,
        })
    }

    /// Returns the TLS files, if TLS is used.
    pub(crate) const fn tls(&self) -> Option<&Files> {
        self.tls.as_ref()
    }

    /// Returns the topology of the servers.
    pub(crate) const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the login for the servers with the data, and the database.
    pub(crate) const fn login(&self) -> &RedisConnectionInfo {
        &self.login
    }

    /// Returns the login for sentinels.
    pub(crate) const fn sentinel_login(&self) -> &RedisConnectionInfo {
        &self.sentinel_login
    }

    /// Returns the durability that is requested.
    pub(crate) const fn durability(&self) -> Wanted {
        self.durability
    }

    /// Returns whether a server is accepted that evicts jobs when its memory is full.
    pub(crate) const fn allows_eviction(&self) -> bool {
        self.allows_eviction
    }

    /// Returns the prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns a key of a shard. Prefixes have no braces, so the shard's number in braces keeps all its keys on one
    /// server of a cluster.
    pub(crate) fn key(&self, shard: u16, name: &str) -> Vec<u8> {
        format!("{}:{{{shard}}}:{name}", self.prefix).into_bytes()
    }

    /// Returns whether it leads to a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster { .. })
    }

    /// Returns a key that never exists, for scripts in a cluster to name. A server that migrates keys accepts a
    /// script only while all of its keys are there. Without this key, a script that removes the last member of a key
    /// could be refused half-way.
    pub(crate) fn absent_key(&self, shard: u16) -> Option<Vec<u8>> {
        self.is_cluster().then(|| self.key(shard, "absent"))
    }

    /// Returns the key of a queue's notifications.
    pub(crate) fn notification_key(&self, shard: u16, queue: &str) -> Vec<u8> {
        self.key(shard, &["w:", queue].concat())
    }
}

/// Prints the address as `Store::url` shows it: without user, password and defaults.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let db = self.login.db();
        let s = if self.tls.is_some() { "s" } else { "" };
        let mut options = Vec::new();
        match &self.topology {
            Topology::Server(Node::Unix(path)) => {
                write!(f, "redis+unix://{}", path.display())?;
                if db != 0 {
                    options.push(format!("db={db}"));
                }
            }
            Topology::Server(node) => write!(f, "redis{s}://{node}/{db}")?,
            Topology::Sentinel { sentinels, service } => {
                write!(f, "redis{s}+sentinel://{}/{service}/{db}", list(sentinels))?;
            }
            Topology::Cluster { seeds } => write!(f, "redis{s}+cluster://{}", list(seeds))?,
        }
        if let Some(Files { ca, own }) = &self.tls {
            let (cert, key) = own.as_ref().map(|(cert, key)| (cert, key)).unzip();
            let files = [("ca", ca.as_ref()), ("cert", cert), ("key", key)];
            let named = |(name, path): (&str, Option<&PathBuf>)| Some(format!("{name}={}", path?.display()));
            options.extend(files.into_iter().filter_map(named));
        }
        if self.durability != Wanted::default() {
            options.push(format!("durability={}", self.durability));
        }
        if self.prefix != PREFIX {
            options.push(format!("prefix={}", self.prefix));
        }
        if self.allows_eviction {
            options.push("eviction=allowed".to_owned());
        }
        if options.is_empty() { Ok(()) } else { write!(f, "?{}", options.join("&")) }
    }
}

fn list(nodes: &[Node]) -> String {
    nodes.iter().map(Node::to_string).collect::<Vec<_>>().join(",")
}

/// Splits off the hosts after the first one, because a URL has only one.
fn split_hosts(rest: &str) -> Result<(String, Vec<String>)> {
    let rest = rest.strip_prefix("//").ok_or_else(unreadable)?;
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
    let mut hosts = hosts.split(',').map(str::to_owned);
    let first = hosts.next().unwrap_or_default();
    let others: Vec<_> = hosts.collect();
    if NODES_MAX <= others.len() {
        return Err(Error::invalid(format!("an address names at most {NODES_MAX} hosts")));
    }
    let at = if user.is_empty() { "" } else { "@" };
    Ok((format!("redis://{user}{at}{first}{tail}"), others))
}

/// Parses one of several hosts.
fn node(host: &str, scheme: Scheme) -> Result<Node> {
    let mut url = redis::parse_redis_url(&format!("redis://{host}")).ok_or_else(unreadable)?;
    if url.port().is_none()
        && let Some(port) = scheme.port()
    {
        url.set_port(Some(port)).map_err(|()| unreadable())?;
    }
    let info = url.into_connection_info().map_err(|e| unreadable().with_source(e))?;
    Node::try_from(info.addr()).map_err(|()| unreadable())
}

fn named(login: RedisConnectionInfo) -> RedisConnectionInfo {
    login.set_lib_name("punctual", env!("CARGO_PKG_VERSION"))
}

fn sentinel_login(options: &[(String, String)]) -> RedisConnectionInfo {
    options.iter().fold(named(RedisConnectionInfo::default()), |login, (key, value)| match key.as_str() {
        "sentinel_user" => login.set_username(value),
        "sentinel_pass" => login.set_password(value),
        _ => login,
    })
}

fn unreadable() -> Error {
    Error::invalid("could not read the address of a redis: store").with_hint(
        "write redis://user:password@host:6379/0 with %-escapes in the password, redis+unix:///path, \
         redis+sentinel://host:26379,host2:26379/service/0, or redis+cluster://host:6379,host2:6379",
    )
}

/// Checks the name of a service: the characters that sentinels accept.
fn check_service(text: &str) -> Result<String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !text.is_empty() && is_plain {
        return Ok(text.to_owned());
    }
    Err(Error::invalid("the path of a redis+sentinel: address begins with no service")
        .with_hint("write the name that the sentinels watch it by: redis+sentinel://host:26379/mymaster/0"))
}

fn check_prefix(text: &str) -> Result<String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
    if !text.is_empty() && text.len() <= PREFIX_BYTES_MAX && is_plain {
        return Ok(text.to_owned());
    }
    Err(Error::invalid(format!("{:?} can't be the prefix of keys", shown(text)))
        .with_hint("write 1 to 64 ASCII letters, digits, and - _ . :"))
}

/// Returns the beginning of the user's text.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::error::ErrorKind;

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
                "redis+sentinel://ana:secret@a,[::1]:7000/main?sentinel_pass=secret",
                "redis+sentinel://a:26379,[::1]:7000/main/0",
            ),
            ("redis+cluster://:secret@a,b:7000/?prefix=x", "redis+cluster://a:6379,b:7000?prefix=x"),
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
    fn every_option_is_read_and_its_default_changes_nothing() {
        for (name, having, default) in OPTIONS {
            let base = match having {
                Having::Every => "redis://cache",
                Having::Tls => "rediss://cache",
                Having::Socket => "redis+unix:///s",
                Having::Sentinel => "redis+sentinel://a/main",
            };
            let value = match name {
                "eviction" => "allowed",
                "cert" => "/c&key=/k",
                "key" => "/k&cert=/c",
                _ => default.unwrap_or("x"),
            };
            let address = Address::parse(&format!("{base}?{name}={value}")).unwrap();
            if default.is_some() {
                assert_eq!(address.to_string(), Address::parse(base).unwrap().to_string(), "{name}");
            }
        }
    }

    #[test]
    fn what_is_shown_is_an_address_again() {
        for text in [
            "redis://[::1]:7000/2?durability=full&prefix=a.b&eviction=allowed",
            "redis+unix:///s?db=2&prefix=x",
            "redis+sentinel://a:1,[::1]:2/main/3?prefix=x",
            "redis+cluster://a:1,b:2?durability=replicated(1)",
            "rediss://a:1/0?ca=/etc/ca.pem&cert=/c&key=/k&prefix=x",
            "rediss+sentinel://a:1/main/0",
            "rediss+cluster://a:1?ca=ca.pem",
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn all_parts_are_read() {
        let address =
            Address::parse("redis://a%40b:p%23%2F%3A@cache:7000/3?durability=replicated(32)&prefix=x")
                .unwrap();
        let settings = address.login();
        assert_eq!(settings.username(), Some("a@b"));
        assert_eq!(settings.password(), Some("p#/:"));
        assert_eq!(settings.db(), 3);
        assert_eq!(*address.topology(), Topology::Server(Node::Tcp("cache".into(), 7_000)));
        assert_eq!((address.durability(), address.prefix.as_str()), (Wanted::Replicated(32), "x"));

        let address = Address::parse("redis+unix:///a%20b.sock?user=u&pass=p%26w").unwrap();
        let settings = address.login();
        assert_eq!((settings.username(), settings.password()), (Some("u"), Some("p&w")));
        assert_eq!(*address.topology(), Topology::Server(Node::Unix("/a b.sock".into())));
        assert_eq!((address.durability(), address.prefix.as_str()), (Wanted::Fast, "pq"));

        let address =
            Address::parse("redis+sentinel://u:p%40@a,b:7/main/2?sentinel_user=s&sentinel_pass=t%26");
        let address = address.unwrap();
        let sentinels = vec![Node::Tcp("a".into(), 26_379), Node::Tcp("b".into(), 7)];
        assert_eq!(*address.topology(), Topology::Sentinel { sentinels, service: "main".into() });
        let (login, other) = (address.login(), address.sentinel_login());
        assert_eq!((login.username(), login.password(), login.db()), (Some("u"), Some("p@"), 2));
        assert_eq!((other.username(), other.password(), other.db()), (Some("s"), Some("t&"), 0));

        let address = Address::parse("redis+cluster://u:p@a,[::1]:7").unwrap();
        let seeds = vec![Node::Tcp("a".into(), 6_379), Node::Tcp("::1".into(), 7)];
        assert_eq!(*address.topology(), Topology::Cluster { seeds });
        assert_eq!((address.login().username(), address.login().password()), (Some("u"), Some("p")));
    }

    /// A password in base64 has one, before and after the question mark.
    #[test]
    fn a_plus_stands_for_itself() {
        for text in ["redis://u+1:a+b%20c==@h", "redis+unix:///s+1?user=u+1&pass=a+b%20c=="] {
            let address = Address::parse(text).unwrap();
            let login = address.login();
            assert_eq!((login.username(), login.password()), (Some("u+1"), Some("a+b c==")), "{text}");
        }
        let address =
            Address::parse("redis+sentinel://h/main?sentinel_user=u+1&sentinel_pass=a%2Bb+c").unwrap();
        let login = address.sentinel_login();
        assert_eq!((login.username(), login.password()), (Some("u+1"), Some("a+b+c")));
        let address = Address::parse("rediss://h?ca=/c+a&cert=/c+b&key=/c+c").unwrap();
        let files = address.tls().unwrap();
        assert_eq!(files.ca, Some(PathBuf::from("/c+a")));
        assert_eq!(files.own, Some((PathBuf::from("/c+b"), PathBuf::from("/c+c"))));
        assert_eq!(Address::parse(&address.to_string()).unwrap().tls().unwrap().ca, files.ca);
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
            "redis://cache?eviction=yes",
            "redis://cache?prefix=",
            "redis://cache?prefix={a}",
            "redis://cache?prefix=a%20b",
            "unix:///run/redis.sock",
            "redis+unix:relative.sock?pass=secret&db=x",
            "redis+unix:///run/redis.sock?pass=secret&db=x",
            "redis+unix:///run/redis.sock?port=1",
            "valkey://cache",
            "redis+sentinel://:secret@a",
            "redis+sentinel://:secret@a/",
            "redis+sentinel://:secret@a/main/x",
            "redis+sentinel://:secret@a/ma%20in",
            "redis+sentinel://:secret@a,/main",
            "redis+sentinel://:secret@a,:7/main",
            "redis+sentinel:a/main",
            "redis+cluster://:secret@a/1",
            "redis+cluster://:secret@a,b:port",
            "redis+cluster://:secret@",
            "redis+cluster://:secret@a?sentinel_pass=secret",
            "redis://:secret@a?ca=/etc/ca.pem",
            "rediss://:secret@a?cert=/etc/cert.pem",
            "rediss+unix:///run/redis.sock?pass=secret",
            "rediss://:secret@a/#insecure",
        ] {
            let error = Address::parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.hint().is_some(), "{text}");
            assert!(!format!("{error:?} {error}").contains("secret"), "{error:?}");
        }
        let long = format!("redis://cache?prefix={}", "x".repeat(PREFIX_BYTES_MAX + 1));
        assert_eq!(Address::parse(&long).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
