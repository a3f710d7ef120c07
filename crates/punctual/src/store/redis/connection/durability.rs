//! How a server confirms the durability of an `Ok` (S1). After each promised write, in the same round trip, a command
//! waits until all earlier writes of the connection are safe.
//!
//! `WAIT` and `WAITAOF` use the position of the server's log when the connection sent its last command, which need
//! not be a write. So a call that is repeated over a new connection and finds its work done is confirmed, too.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use crate::store::redis::{
    connection::{Connection, address::Wanted},
    scripts::script::Script,
};

/// How long replicas can take to have a write. They reply at once when they are asked.
const REPLICAS_MAX: Duration = Duration::from_secs(1);
/// How long the server's disk can take. With `appendfsync everysec` it takes a second, and one more if the disk is
/// slow.
const DISK_MAX: Duration = Duration::from_secs(3);

/// The command that a connection sends after a promised write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirm {
    /// None: the answer itself is the promise.
    Nothing,
    /// Waits for this many replicas.
    Replicas(u8),
    /// Waits for the server's disk.
    Disk,
}

/// Why a connection cannot provide the requested durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The server neither syncs each write nor can report when it did.
    Disk,
    /// The number of replicas that exist, and the number requested.
    Replicas(usize, u8),
    /// The server is itself a replica: another one has taken over, or will.
    Replica,
}

/// The number of copies that have the write, and the number requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unconfirmed {
    Replicas(i64, u8),
    Disk,
}

impl Confirm {
    /// Finds out how a server provides the requested durability.
    pub(crate) async fn agree(wanted: Wanted, connection: &Connection) -> RedisResult<Result<Self, Unfit>> {
        match wanted {
            Wanted::Fast => Ok(Ok(Self::Nothing)),
            Wanted::Replicated(n) => {
                // Waits for no replica: a user that may not call `WAIT` is refused here, and not after a write.
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
                // An older server does not know this command, and one without a log refuses it.
                if let Value::Array(_) = connection.send(&wait_for_disk(Duration::from_millis(1))).await? {
                    return Ok(Ok(Self::Disk));
                }
                refusal(settings)?;
                Ok(Err(Unfit::Disk))
            }
        }
    }

    /// Checks whether as many replicas exist as it waits for.
    pub(crate) async fn check_replicas(self, connection: &Connection) -> RedisResult<Result<(), Unfit>> {
        let Self::Replicas(wanted) = self else { return Ok(Ok(())) };
        let mut cmd = Cmd::new();
        cmd.arg("ROLE");
        let found = replicas(&refusal(connection.send(&cmd).await?)?);
        Ok(if found < usize::from(wanted) { Err(Unfit::Replicas(found, wanted)) } else { Ok(()) })
    }

    /// Returns the command to send after a script.
    pub(crate) fn cmd(self, script: &Script) -> Option<Cmd> {
        match self {
            Self::Nothing => None,
            // Without this, a replica that takes over without knowing of a lease would hand out its job again.
            Self::Replicas(n) if hands_out(script.name()) => Some(wait(n, REPLICAS_MAX)),
            _ if !is_promised(script.name()) => None,
            Self::Replicas(n) => Some(wait(n, REPLICAS_MAX)),
            Self::Disk => Some(wait_for_disk(DISK_MAX)),
        }
    }

    /// Checks whether the answer to [`cmd`](Self::cmd) says that the earlier writes are safe.
    pub(crate) fn check(self, answer: &Value) -> Result<(), Unconfirmed> {
        match (self, answer) {
            (Self::Nothing, _) => Ok(()),
            (Self::Replicas(n), Value::Int(found)) if i64::from(n) <= *found => Ok(()),
            (Self::Replicas(n), Value::Int(found)) => Err(Unconfirmed::Replicas(*found, n)),
            (Self::Replicas(n), _) => Err(Unconfirmed::Replicas(0, n)),
            // [local disks, replicas' disks]
            (Self::Disk, Value::Array(found)) if matches!(found[..], [Value::Int(1..), _]) => Ok(()),
            (Self::Disk, _) => Err(Unconfirmed::Disk),
        }
    }
}

/// Returns whether a script hands out jobs.
fn hands_out(script: &str) -> bool {
    matches!(script, "reserve" | "take")
}

/// Returns whether the answer to a script is the only copy of what it took. Such an answer reaches the caller whether
/// it is confirmed or not. All other calls can be repeated.
pub(crate) fn gives_away(script: &Script) -> bool {
    script.name() == "take"
}

/// Returns whether the `Ok` of a script survives a crash. That of a reserve or extend need not: the job then runs
/// again.
fn is_promised(script: &str) -> bool {
    matches!(script, "enqueue" | "settle" | "act" | "set" | "open" | "purge" | "layout" | "epoch" | "restore")
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

/// Reads the answer to `CONFIG GET append*`: names and values in turn.
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

/// Reads a primary's answer to `ROLE`: `[master, offset, [replica…]]`, with the replicas that are up to date.
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
        // A replica that takes over must know the leases. After a power cut, a job may run again.
        assert!(Confirm::Replicas(1).cmd(&reserve).is_some() && Confirm::Disk.cmd(&reserve).is_none());
    }

    #[test]
    fn an_answer_confirms_or_says_what_is_missing() {
        let two = Confirm::Replicas(2);
        assert_eq!(two.check(&read(":2\r\n")), Ok(()));
        assert_eq!(two.check(&read(":3\r\n")), Ok(()));
        assert_eq!(two.check(&read(":1\r\n")), Err(Unconfirmed::Replicas(1, 2)));
        assert_eq!(two.check(&read("-ERR no\r\n")), Err(Unconfirmed::Replicas(0, 2)));
        // As documented for WAITAOF: the local disk, and the number of replicas that synced.
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
