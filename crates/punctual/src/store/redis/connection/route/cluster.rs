//! Clusters: each key is in one of 16,384 slots, by a hash of the text in its braces, and each slot has one primary.

use redis::{Cmd, RedisError, RedisResult, Value};

use super::{KNOWN_MAX, Route, odd};
use crate::store::redis::connection::{Connection, node::Node};

const SLOTS: u16 = 16_384;

/// Returns the slot of a shard's keys, whose braces contain its number.
pub(crate) fn slot_of(shard: u16) -> u16 {
    crc16(shard.to_string().as_bytes()) % SLOTS
}

/// Computes CRC-16/XMODEM, the hash of clusters.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
    })
}

impl Route {
    /// Asks a server of a cluster. The server `dead` is not tried again.
    pub(crate) async fn ask_member(
        &self,
        guide: &Node,
        dead: &mut Vec<Node>,
    ) -> RedisResult<(Node, Connection)> {
        let asked = self.open(guide).await?;
        let mut cmd = Cmd::new();
        cmd.arg("CLUSTER").arg("SLOTS");
        let map = Map::read(asked.send(&cmd).await?, guide, self.slot)?;
        self.remember(map.nodes);
        let node = map.primary.ok_or_else(|| odd("no server of the cluster has the store's keys"))?;
        if node == *guide {
            return Ok((node, asked));
        }
        if dead.contains(&node) {
            return Err(odd("the server that has the store's keys is not there"));
        }
        dead.push(node.clone());
        let connection = self.open(&node).await?;
        Ok((node, connection))
    }

    /// Remembers more servers than the address names, because those can leave while the cluster stays.
    fn remember(&self, nodes: Vec<Node>) {
        let mut known = self.known();
        for node in nodes {
            if known.guides.len() < KNOWN_MAX && !known.guides.contains(&node) {
                known.guides.push(node);
            }
        }
    }
}

/// The answer to `CLUSTER SLOTS`.
#[derive(Debug, PartialEq, Eq)]
struct Map {
    primary: Option<Node>,
    nodes: Vec<Node>,
}

impl Map {
    /// Reads the answer of `guide`: ranges as `[first, last, primary, replica…]`, each server as `[host, port, …]`.
    fn read(answer: Value, guide: &Node, slot: u16) -> RedisResult<Self> {
        let ranges = match answer {
            Value::Array(ranges) => ranges,
            Value::ServerError(refusal) if refusal.code() == "ERR" => {
                return Err(RedisError::from((
                    redis::ErrorKind::InvalidClientConfig,
                    "the server is no part of a cluster",
                )));
            }
            Value::ServerError(refusal) => return Err(refusal.into()),
            _ => return Err(odd("the server did not return its cluster's layout")),
        };
        let mut map = Self { primary: None, nodes: Vec::new() };
        for range in ranges {
            let Value::Array(parts) = range else { continue };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = parts.as_slice() else { continue };
            let mut nodes = nodes.iter().map(|node| place(node, guide));
            let Some(primary) = nodes.next() else { continue };
            if (*first..=*last).contains(&i64::from(slot)) {
                map.primary.clone_from(&primary);
            }
            map.nodes.extend(primary.into_iter().chain(nodes.flatten()));
        }
        Ok(map)
    }
}

/// Parses a server of a range. Without a host, it is on the host of `guide`.
fn place(node: &Value, guide: &Node) -> Option<Node> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let port = u16::try_from(*port).ok().filter(|port| *port != 0)?;
    match host {
        Value::BulkString(host) if host == b"?" => None,
        Value::BulkString(host) if !host.is_empty() => {
            Some(Node::Tcp(String::from_utf8(host.clone()).ok()?, port))
        }
        Value::BulkString(_) | Value::Nil => Some(guide.beside(port)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: Option<&str>, port: i64) -> Value {
        let host = host.map_or(Value::Nil, |host| Value::BulkString(host.as_bytes().to_vec()));
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())])
    }

    fn node(host: &str, port: u16) -> Node {
        Node::Tcp(host.to_owned(), port)
    }

    #[test]
    fn a_slot_is_computed_as_servers_do() {
        // The value in the specification of clusters.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // redis-cli CLUSTER KEYSLOT 'pq:{0}:j'
        assert_eq!(slot_of(0), 13_907);
        // redis-cli CLUSTER KEYSLOT 'pq:{1023}:j'
        assert_eq!(slot_of(1_023), 14_911);
    }

    #[test]
    fn a_map_names_the_primary_of_a_slot_and_who_else_is_there() {
        let (a, b) = (server(Some("a"), 1), server(Some("b"), 2));
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let answer = Value::Array(vec![
            range(0, 99, vec![a.clone()]),
            range(100, 200, vec![server(None, 3), b, server(Some("?"), 4), server(Some(""), 5)]),
            range(201, 300, vec![a]),
        ]);
        let guide = node("guide", 9);
        let map = Map::read(answer.clone(), &guide, 100).unwrap();
        assert_eq!(map.primary, Some(node("guide", 3)));
        let nodes = vec![node("a", 1), node("guide", 3), node("b", 2), node("guide", 5), node("a", 1)];
        assert_eq!(map.nodes, nodes);
        assert_eq!(Map::read(answer, &guide, 301).unwrap().primary, None);
    }
}
