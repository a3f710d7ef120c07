//! Sentinels watch a primary and its replicas, make another one the primary when it dies, and tell who asks.

use redis::{Cmd, RedisError, RedisResult, Value};

use super::{Route, odd};
use crate::store::redis::connection::{Connection, node::Node};

impl Route {
    /// Asks a sentinel, and the server that it names whether it is a primary indeed: sentinels learn of changes one after
    /// another.
    pub(crate) async fn ask_sentinel(
        &self,
        sentinel: &Node,
        service: &str,
    ) -> RedisResult<(Node, Connection)> {
        let asked = Connection::open(sentinel, self.address.sentinel_login(), self.tls.as_ref()).await?;
        let mut cmd = Cmd::new();
        cmd.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let node = primary(asked.send(&cmd).await?)?;
        let connection = self.open(&node).await?;
        let mut cmd = Cmd::new();
        cmd.arg("ROLE");
        check_role(connection.send(&cmd).await?)?;
        Ok((node, connection))
    }
}

/// Reads the answer of a sentinel.
fn primary(answer: Value) -> RedisResult<Node> {
    match answer {
        Value::ServerError(refusal) => Err(refusal.into()),
        Value::Nil => Err(RedisError::from((
            redis::ErrorKind::InvalidClientConfig,
            "the sentinel watches no service of this name",
        ))),
        Value::Array(parts) => match parts.as_slice() {
            [Value::BulkString(host), Value::BulkString(port)] => {
                let (host, port) = (str::from_utf8(host).ok(), str::from_utf8(port).ok());
                let port = port.and_then(|port| port.parse().ok());
                let node = host.zip(port).map(|(host, port)| Node::Tcp(host.to_owned(), port));
                node.ok_or_else(|| odd("the sentinel named no server"))
            }
            _ => Err(odd("the sentinel named no server")),
        },
        _ => Err(odd("the sentinel named no server")),
    }
}

/// Reads the answer to `ROLE`.
fn check_role(answer: Value) -> RedisResult<()> {
    match answer {
        Value::ServerError(refusal) => Err(refusal.into()),
        Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"master".to_vec())) => Ok(()),
        _ => Err(odd("the server that the sentinel named is no primary")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_sentinel_names_a_server_or_none() {
        let named = Value::Array(vec![bulk("::1"), bulk("6379")]);
        assert_eq!(primary(named).unwrap(), Node::Tcp("::1".into(), 6_379));
        assert_eq!(primary(Value::Nil).unwrap_err().kind(), redis::ErrorKind::InvalidClientConfig);
        assert!(primary(Value::Array(vec![bulk("host"), bulk("x")])).is_err());
    }

    #[test]
    fn only_a_primary_will_do() {
        assert!(check_role(Value::Array(vec![bulk("master"), Value::Int(7)])).is_ok());
        assert!(check_role(Value::Array(vec![bulk("slave"), bulk("h")])).is_err());
        assert!(check_role(Value::Nil).is_err());
    }
}
