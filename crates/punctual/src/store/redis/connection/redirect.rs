//! The answers that say "not here" or "not now": nothing was done, and the same call may be sent again.
//!
//! They are told apart by their codes. A server refuses so before it begins a command, and a script is refused as a whole;
//! what a script meets in its midst comes with other codes.

use std::time::Duration;

use redis::{ServerError, Value};

use crate::store::redis::connection::{
    address::Topology,
    fault::{NOSCRIPT, READONLY},
    node::Node,
};

/// How long one call may wait in all for servers that take over from each other.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Before the second time that a call is sent again, doubling with each.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What to do before a call is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Detour {
    /// The server does not know the script: it is to be told.
    Load,
    /// Another server has the keys now, named as the one that answered knows it.
    Moved(String),
    /// Another server may have the keys already, which are on their way; only this call goes there.
    Ask(String),
    /// The server takes no writes: another one has taken over, or will.
    Elsewhere,
    /// It can't be answered at the moment.
    Later,
}

impl Detour {
    /// What a server's answer asks for, if it asks for anything.
    pub(crate) fn of(answer: &Value, topology: &Topology) -> Option<Self> {
        let Value::ServerError(refusal) = answer else { return None };
        match (refusal.code(), topology) {
            (NOSCRIPT, _) => Some(Self::Load),
            // One server that takes no writes won't change by itself.
            (_, Topology::Server(_)) => None,
            (READONLY, _) => Some(Self::Elsewhere),
            ("MOVED", Topology::Cluster { .. }) => place(refusal).map(Self::Moved),
            ("ASK", Topology::Cluster { .. }) => place(refusal).map(Self::Ask),
            ("TRYAGAIN" | "CLUSTERDOWN", Topology::Cluster { .. }) => Some(Self::Later),
            _ => None,
        }
    }
}

/// The place in `MOVED 3999 127.0.0.1:6381`.
fn place(refusal: &ServerError) -> Option<String> {
    let (_, place) = refusal.details()?.split_once(' ')?;
    Some(place.to_owned())
}

impl Node {
    /// The place that a server named; without a host it means its own, with another port.
    pub(crate) fn named_by(&self, place: &str) -> Option<Self> {
        match place.strip_prefix(':') {
            Some(port) => port.parse().ok().map(|port| self.beside(port)),
            None => Self::parse(place),
        }
    }
}

/// How often a call was sent, and how long it has waited.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    sent_again: u32,
    waited: Duration,
}

impl Patience {
    /// How long to wait before the call is sent again; nothing: long enough. The first time is at once.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        self.sent_again += 1;
        if self.sent_again == 1 {
            return Some(Duration::ZERO);
        }
        let doubled = PAUSE_MIN * 2_u32.pow((self.sent_again - 2).min(16));
        let pause = doubled.min(PAUSE_MAX);
        self.waited += pause;
        (self.waited <= WAIT_MAX).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> Value {
        redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap()
    }

    #[test]
    fn only_answers_that_say_that_nothing_was_done_lead_elsewhere() {
        let server = Topology::Server(Node::Tcp("a".into(), 1));
        let sentinel = Topology::Sentinel { sentinels: Vec::new(), service: "main".into() };
        let cluster = Topology::Cluster { seeds: Vec::new() };
        let moved = Detour::Moved("10.0.0.7:6381".to_owned());
        let ask = Detour::Ask(":6381".to_owned());
        for (line, by_server, by_sentinel, by_cluster) in [
            ("NOSCRIPT No matching script.", Some(Detour::Load), Some(Detour::Load), Some(Detour::Load)),
            ("READONLY You can't write.", None, Some(Detour::Elsewhere), Some(Detour::Elsewhere)),
            ("MOVED 3999 10.0.0.7:6381", None, None, Some(moved)),
            ("ASK 3999 :6381", None, None, Some(ask)),
            ("TRYAGAIN Multiple keys request", None, None, Some(Detour::Later)),
            ("CLUSTERDOWN Hash slot not served", None, None, Some(Detour::Later)),
            ("MOVED", None, None, None),
            ("UNKILLABLE Sorry", None, None, None),
            ("ERR whatever", None, None, None),
        ] {
            let answer = answer(line);
            assert_eq!(Detour::of(&answer, &server), by_server, "{line}");
            assert_eq!(Detour::of(&answer, &sentinel), by_sentinel, "{line}");
            assert_eq!(Detour::of(&answer, &cluster), by_cluster, "{line}");
        }
        assert_eq!(Detour::of(&Value::Int(1), &cluster), None);
    }

    #[test]
    fn a_place_without_a_host_is_on_the_host_that_names_it() {
        let asked = Node::Tcp("::1".into(), 7_000);
        assert_eq!(asked.named_by(":7001"), Some(Node::Tcp("::1".into(), 7_001)));
        assert_eq!(asked.named_by("10.0.0.7:1"), Some(Node::Tcp("10.0.0.7".into(), 1)));
        assert_eq!(asked.named_by("10.0.0.7"), None);
    }

    #[test]
    fn patience_ends() {
        let mut patience = Patience::default();
        assert_eq!(patience.next(), Some(Duration::ZERO));
        assert_eq!(patience.next(), Some(PAUSE_MIN));
        let mut waited = PAUSE_MIN;
        while let Some(pause) = patience.next() {
            assert!(pause <= PAUSE_MAX);
            waited += pause;
        }
        assert!(WAIT_MAX <= waited + PAUSE_MAX && waited <= WAIT_MAX);
    }
}
