//! What a server tells about itself (INFO), by name. Forks tell the same names, some of them more.

use std::{collections::HashMap, fmt};

/// The lines of INFO. Empty where the user may not ask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info(HashMap<String, String>);

/// Which program the server is, and which of its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// `Redis`, or the name of a fork.
    pub(crate) name: &'static str,
    version: String,
}

/// Forks by the line that only they tell.
const FORKS: [(&str, &str); 3] =
    [("valkey_version", "Valkey"), ("dragonfly_version", "Dragonfly"), ("mvcc_depth", "KeyDB")];

impl Info {
    pub(crate) fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    /// Whether nothing was told.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is told under a name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// What is told as a number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    pub(crate) fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == Some(value)
    }

    /// Which Redis the server is compatible with: forks tell that, too.
    pub(crate) fn redis_version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.get("redis_version")?.split('.').map(|n| n.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    }

    pub(crate) fn program(&self) -> Program {
        let fork = FORKS.into_iter().find_map(|(line, name)| Some((name, self.get(line)?)));
        let redis = self.get("redis_version").unwrap_or("of an unknown version");
        match fork {
            // Tells no version of its own but Redis's.
            Some(("KeyDB", _)) => Program { name: "KeyDB", version: redis.to_owned() },
            Some((name, version)) => Program { name, version: version.trim_start_matches("df-v").to_owned() },
            None => Program { name: "Redis", version: redis.to_owned() },
        }
    }

    /// The policy by which the server deletes keys when its memory is full, if there is such a policy.
    pub(crate) fn eviction(&self) -> Option<&str> {
        self.get("maxmemory_policy").filter(|policy| *policy != "noeviction")
    }

    /// Whether it is one of a cluster's.
    pub(crate) fn is_of_a_cluster(&self) -> bool {
        self.is("cluster_enabled", "1") || self.is("redis_mode", "cluster")
    }

    /// Whether it copies another server, which alone takes writes.
    pub(crate) fn is_replica(&self) -> bool {
        self.is("role", "slave") || self.is("role", "replica")
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_are_known_by_what_only_they_tell() {
        for (text, program, version) in [
            ("redis_version:7.0.15", "Redis 7.0.15", Some((7, 0))),
            (
                "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0",
                "Valkey 8.1.0",
                Some((7, 2)),
            ),
            ("redis_version:6.2.11\r\ndragonfly_version:df-v1.24.0", "Dragonfly 1.24.0", Some((6, 2))),
            ("redis_version:6.3.4\r\nmvcc_depth:0", "KeyDB 6.3.4", Some((6, 3))),
            ("redis_version:unstable", "Redis unstable", None),
            ("", "Redis of an unknown version", None),
        ] {
            let info = Info::parse(text.as_bytes());
            assert_eq!((info.program().to_string().as_str(), info.redis_version()), (program, version));
        }
    }

    #[test]
    fn lines_are_read_by_their_names() {
        let info =
            Info::parse(b"# Memory\r\nused_memory:12\r\nmaxmemory_policy:allkeys-lru\r\nrole:slave\r\n");
        assert_eq!((info.number("used_memory"), info.eviction()), (Some(12), Some("allkeys-lru")));
        assert!(info.is_replica() && !info.is_of_a_cluster() && !info.is_empty());
        assert_eq!(Info::parse(b"maxmemory_policy:noeviction").eviction(), None);
        assert!(Info::parse(b"").is_empty());
    }
}
