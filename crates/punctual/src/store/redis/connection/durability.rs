//! How a server confirms what `Ok` promises (S1): behind each promised write, in the same round trip, stands a command that
//! waits until all earlier writes of the connection are safe.
//!
//! `WAIT` and `WAITAOF` look at how far the server's log was when the connection sent its last command, be it a write or not:
//! so a call that is repeated over a new connection, and finds its work done, is confirmed all the same.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use crate::store::redis::{
    connection::{Connection, address::Wanted},
    scripts::script::Script,
};

/// How long replicas may take to have a write: they answer at once when they are asked.
const REPLICAS_MAX: Duration = Duration::from_secs(1);
/// How long the server's disk may take. With `appendfsync everysec` it is a second, and another one behind a slow disk.
const DISK_MAX: Duration = Duration::from_secs(3);

/// What a connection does behind a promised write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirm {
    /// Nothing: the answer itself is the promise.
    Nothing,
    /// Waits for so many replicas.
    Replicas(u8),
    /// Waits for the server's disk.
    Disk,
}

/// Why a connection can't give what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The server neither syncs each write nor can say when it did.
    Disk,
    /// So many replicas are there, and so many are wanted.
    Replicas(usize, u8),
    /// The server is a replica itself: another one has taken over, or will.
    Replica,
}

/// So many have the write, and so many are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unconfirmed {
    Replicas(i64, u8),
    Disk,
}

impl Confirm {
    /// Finds out how a server gives what is wanted.
    pub(crate) async fn agree(wanted: Wanted, connection: &Connection) -> RedisResult<Result<Self, Unfit>> {
        match wanted {
            Wanted::Fast => Ok(Ok(Self::Nothing)),
            Wanted::Replicated(n) => {
                // For none: who must not ask hears of it here, and not behind a write.
                let answer = connection.send(&wait(0, REPLICAS_MAX)).await?;
                if matches!(&answer, Value::ServerError(_)) && is_replica(connection).await? {
                    return Ok(Err(Unfit::Replica));
                }
                refusal(answer)?;
                Ok(Ok(Self::Replicas(n)))
            }
            Wanted::Full => {
                let mut cmd = Cmd::new();
                cmd.arg("CONFIG").arg("GET").arg("append*");
                let settings = connection.send(&cmd).await?;
                if syncs_each_write(&settings) {
                    return Ok(Ok(Self::Nothing));
                }
                // An older server does not know it, and one without a log refuses it.
                if let Value::Array(_) = connection.send(&wait_for_disk(Duration::from_millis(1))).await? {
                    return Ok(Ok(Self::Disk));
                }
                refusal(settings)?;
                Ok(Err(Unfit::Disk))
            }
        }
    }

    /// Whether so many replicas are there as it waits for.
    pub(crate) async fn check_replicas(self, connection: &Connection) -> RedisResult<Result<(), Unfit>> {
        let Self::Replicas(wanted) = self else { return Ok(Ok(())) };
        let mut cmd = Cmd::new();
        cmd.arg("ROLE");
        let found = replicas(&refusal(connection.send(&cmd).await?)?);
        Ok(if found < usize::from(wanted) { Err(Unfit::Replicas(found, wanted)) } else { Ok(()) })
    }

    /// What to send behind a script.
    pub(crate) fn cmd(self, script: &Script) -> Option<Cmd> {
        match self {
            Self::Nothing => None,
            // A replica that takes over and knows nothing of a lease would hand its job out again.
            Self::Replicas(n) if hands_out(script.name()) => Some(wait(n, REPLICAS_MAX)),
            _ if !is_promised(script.name()) => None,
            Self::Replicas(n) => Some(wait(n, REPLICAS_MAX)),
            Self::Disk => Some(wait_for_disk(DISK_MAX)),
        }
    }

    /// Whether the answer to [`cmd`](Self::cmd) says that the writes before are safe.
    pub(crate) fn check(self, answer: &Value) -> Result<(), Unconfirmed> {
        match (self, answer) {
            (Self::Nothing, _) => Ok(()),
            (Self::Replicas(n), Value::Int(found)) if i64::from(n) <= *found => Ok(()),
            (Self::Replicas(n), Value::Int(found)) => Err(Unconfirmed::Replicas(*found, n)),
            (Self::Replicas(n), _) => Err(Unconfirmed::Replicas(0, n)),
            // [how many local disks, how many of replicas]
            (Self::Disk, Value::Array(found)) if matches!(found[..], [Value::Int(1..), _]) => Ok(()),
            (Self::Disk, _) => Err(Unconfirmed::Disk),
        }
    }
}

/// The calls that give jobs away.
fn hands_out(script: &str) -> bool {
    matches!(script, "reserve" | "take")
}

/// Whether the answer to a script is all that is left of what it took: then it reaches the caller, confirmed or not. Everything
/// else can be asked for again.
pub(crate) fn gives_away(script: &Script) -> bool {
    script.name() == "take"
}

/// The calls whose `Ok` survives a crash. Reserves and extends need not: then a job runs again.
fn is_promised(script: &str) -> bool {
    matches!(script, "enqueue" | "settle" | "act" | "set" | "open" | "purge" | "layout" | "epoch")
}

fn wait(replicas: u8, at_most: Duration) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("WAIT").arg(replicas).arg(at_most.as_millis() as u64);
    cmd
}

fn wait_for_disk(at_most: Duration) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("WAITAOF").arg(1).arg(0).arg(at_most.as_millis() as u64);
    cmd
}

async fn is_replica(connection: &Connection) -> RedisResult<bool> {
    let mut cmd = Cmd::new();
    cmd.arg("ROLE");
    let role = connection.send(&cmd).await?;
    Ok(matches!(&role, Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"slave".to_vec()))))
}

fn refusal(answer: Value) -> RedisResult<Value> {
    match answer {
        Value::ServerError(refusal) => Err(refusal.into()),
        answer => Ok(answer),
    }
}

/// Reads the answer to `CONFIG GET append*`, names and values in turn.
fn syncs_each_write(settings: &Value) -> bool {
    let Value::Array(settings) = settings else { return false };
    let is = |name: &[u8], value: &[u8]| {
        settings.chunks_exact(2).any(|pair| match pair {
            [Value::BulkString(n), Value::BulkString(v)] => n == name && v == value,
            _ => false,
        })
    };
    is(b"appendonly", b"yes") && is(b"appendfsync", b"always")
}

/// Reads the answer to `ROLE` of a primary, `[master, offset, [replica…]]`, which tells of those that are up to date.
fn replicas(role: &Value) -> usize {
    match role {
        Value::Array(parts) => match parts.as_slice() {
            [_, _, Value::Array(replicas)] => replicas.len(),
            _ => 0,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Value {
        redis::parse_redis_value(text.as_bytes()).unwrap()
    }

    #[test]
    fn only_writes_that_are_promised_are_waited_for() {
        let [settle, extend, reserve] = ["settle", "extend", "reserve"].map(|name| Script::new(name, &[]));
        let packed = |cmd: Option<Cmd>| cmd.map(|cmd| String::from_utf8(cmd.get_packed_command()).unwrap());
        assert_eq!(
            packed(Confirm::Replicas(2).cmd(&settle)).unwrap(),
            "*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$4\r\n1000\r\n"
        );
        assert_eq!(
            packed(Confirm::Disk.cmd(&settle)).unwrap(),
            "*4\r\n$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n0\r\n$4\r\n3000\r\n"
        );
        assert!(Confirm::Nothing.cmd(&settle).is_none());
        assert!(Confirm::Replicas(1).cmd(&extend).is_none());
        // Who takes over knows who has which job; after a power cut a job may run again.
        assert!(Confirm::Replicas(1).cmd(&reserve).is_some() && Confirm::Disk.cmd(&reserve).is_none());
    }

    #[test]
    fn an_answer_confirms_or_says_what_is_missing() {
        let two = Confirm::Replicas(2);
        assert_eq!(two.check(&read(":2\r\n")), Ok(()));
        assert_eq!(two.check(&read(":3\r\n")), Ok(()));
        assert_eq!(two.check(&read(":1\r\n")), Err(Unconfirmed::Replicas(1, 2)));
        assert_eq!(two.check(&read("-ERR no\r\n")), Err(Unconfirmed::Replicas(0, 2)));
        // As documented for WAITAOF: the local disk, and how many replicas synced.
        assert_eq!(Confirm::Disk.check(&read("*2\r\n:1\r\n:0\r\n")), Ok(()));
        assert_eq!(Confirm::Disk.check(&read("*2\r\n:0\r\n:2\r\n")), Err(Unconfirmed::Disk));
        assert_eq!(Confirm::Disk.check(&read("-ERR unknown command\r\n")), Err(Unconfirmed::Disk));
    }

    #[test]
    fn the_servers_settings_and_role_are_read() {
        let pair =
            |name: &str, value: &str| format!("${}\r\n{name}\r\n${}\r\n{value}\r\n", name.len(), value.len());
        let (on, always) = (pair("appendonly", "yes"), pair("appendfsync", "always"));
        assert!(syncs_each_write(&read(&format!("*4\r\n{always}{on}"))));
        assert!(!syncs_each_write(&read(&format!("*4\r\n{always}{}", pair("appendonly", "no")))));
        assert!(!syncs_each_write(&read(&format!("*4\r\n{on}{}", pair("appendfsync", "everysec")))));
        assert!(!syncs_each_write(&read("-NOPERM no\r\n")));
        let replica = "*3\r\n$9\r\n127.0.0.1\r\n$4\r\n6380\r\n$1\r\n9\r\n";
        assert_eq!(replicas(&read(&format!("*3\r\n$6\r\nmaster\r\n:9\r\n*2\r\n{replica}{replica}"))), 2);
        assert_eq!(replicas(&read("*3\r\n$6\r\nmaster\r\n:9\r\n*0\r\n")), 0);
        assert_eq!(replicas(&read("*2\r\n$5\r\nslave\r\n$1\r\nh\r\n")), 0);
    }
}
