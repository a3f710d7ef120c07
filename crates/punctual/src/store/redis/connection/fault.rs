//! Maps refusals of the server and failures of connections to the errors of the contract.
//!
//! Refusals are distinguished only by their codes, because the texts differ between servers and versions.

use redis::{RedisError, ServerError};

use crate::{
    core::error::{Error, ErrorKind},
    store::redis::{
        connection::{
            durability::{Unconfirmed, Unfit},
            tls,
        },
        scripts::{FORMAT as OWN_FORMAT, FORMAT_MIN},
    },
};

/// The code for a script that the server does not know, or not any more.
pub(crate) const NOSCRIPT: &str = "NOSCRIPT";
/// The code of a server that accepts no writes, perhaps because another one has taken over.
pub(crate) const READONLY: &str = "READONLY";

/// The code for a command that this user may not call.
pub(crate) const NOPERM: &str = "NOPERM";

/// The code for a command that the server does not have, perhaps because it was renamed, among others.
pub(crate) const UNKNOWN_COMMAND: &str = "ERR";

/// What the client says if the server does not have a database.
const NO_DATABASE: &str = "refused to switch database";

/// The code of our scripts for a store in another format.
const FORMAT: &str = "FORMAT";

/// The code of our scripts for a shard whose state is gone or damaged.
const STATELESS: &str = "STATELESS";

/// Makes the error for a server that was unreachable a moment ago. Nothing was sent.
pub(crate) fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "could not connect to the server; the next try is later")
}

/// Returns whether a call failed because a server could not be reached, even if that was half-way.
pub(crate) fn is_away(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::UnknownOutcome)
}

/// Makes the error for a failed connection. Nothing was sent.
pub(crate) fn unreachable(cause: RedisError) -> Error {
    let message = "could not connect to the server";
    if let Some(error) = tls::fault(&cause) {
        return error;
    }
    match cause.clone().into_server_errors().as_deref() {
        Some([(_, refusal), ..]) if refusal.code() != UNKNOWN_COMMAND => refused("connect", refusal),
        _ if cause.kind() == redis::ErrorKind::AuthenticationFailed => {
            not_allowed(message).with_source(cause)
        }
        _ if cause.kind() == redis::ErrorKind::InvalidClientConfig => Error::new(
            ErrorKind::Unsupported,
            message,
        )
        .with_hint(
            "check the address: redis:// names one server, redis+sentinel:// sentinels and the name of their \
                     service, redis+cluster:// a cluster",
        )
        .with_source(cause),
        _ if cause.to_string().contains(NO_DATABASE) => Error::new(
            ErrorKind::Unsupported,
            "the server refused to switch to the database of the address",
        )
        .with_hint(
            "write a smaller number after the host, as in redis://host/0: the server has as many as its \
                     setting `databases` says, and in a cluster only 0",
        )
        .with_source(cause),
        // Also if the socket of the address does not exist.
        _ if cause.is_connection_refusal() => unavailable(
            format!("{message}: nothing listens at its address"),
            "start the server, or correct the host, the port or the path of the socket in the address",
        )
        .with_source(cause),
        _ if cause.is_connection_dropped() || cause.kind() == redis::ErrorKind::Parse => unavailable(
            message.to_owned(),
            "check the port and the server's log; if the port accepts only TLS, write rediss://",
        )
        .with_source(cause),
        _ => unavailable(message.to_owned(), "check that the server runs and that the address is right")
            .with_source(cause),
    }
}

/// Makes the error for a lost answer.
pub(crate) fn lost(operation: &str, cause: RedisError) -> Error {
    Error::new(ErrorKind::UnknownOutcome, format!("lost the answer to {operation}")).with_source(cause)
}

/// Makes the error for an answer that did not arrive in time.
pub(crate) fn silent(operation: &str) -> Error {
    Error::new(ErrorKind::UnknownOutcome, format!("the server did not answer {operation} in time"))
}

/// Makes the error for a server that cannot provide what the address requests.
pub(crate) fn unfit(why: Unfit) -> Error {
    match why {
        Unfit::Disk => Error::new(
            ErrorKind::Unsupported,
            "the server does not sync each write to its disk, as durability=full asks",
        )
        .with_hint("set appendonly yes and appendfsync always on the server, or use durability=fast"),
        Unfit::Replica => unavailable(
            "the server is a replica".to_owned(),
            "a failover may be going on: wait; if the error stays, name the primary in the address",
        ),
        // Replicas may come back.
        Unfit::Replicas(found, wanted) => unavailable(
            format!(
                "the server has {found} replicas, where durability=replicated({wanted}) asks for {wanted}"
            ),
            "start the missing replicas, or write a smaller number",
        ),
    }
}

/// Makes the error for a call that was done but is not as durable as promised.
pub(crate) fn unconfirmed(operation: &str, why: Unconfirmed) -> Error {
    let (message, hint) = match why {
        Unconfirmed::Replicas(found, wanted) => (
            format!("{found} of {wanted} replicas have {operation}"),
            "check that the replicas run and keep up; the call can be repeated",
        ),
        Unconfirmed::Disk => (
            format!("the server's disk does not have {operation} yet"),
            "check that the server's disk keeps up; the call can be repeated",
        ),
    };
    Error::new(ErrorKind::UnknownOutcome, message).with_hint(hint)
}

/// Makes the error for servers that took over from each other for as long as a call waits. It was not done.
pub(crate) fn restless(operation: &str) -> Error {
    unavailable(
        format!("no server took {operation}"),
        "a failover is going on, or too few servers run; check their logs and CLUSTER INFO",
    )
}

/// Makes the error for an answer that no Redis server gives.
pub(crate) fn odd(operation: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("could not understand the answer to {operation}"))
        .with_hint("check what is between this machine and the server, such as a proxy")
}

/// Makes the error for a refusal of the server.
pub(crate) fn refused(operation: &str, refusal: &ServerError) -> Error {
    let code = refusal.code();
    let message = format!("the server refused {operation}: {code}");
    let error = match code {
        "OOM" => Error::new(ErrorKind::StoreFull, message)
            .with_hint("give the server more memory (maxmemory), or keep fewer ended jobs"),
        READONLY => unavailable(message, "the address leads to a replica: name the primary"),
        "LOADING" => unavailable(message, "the server is loading its data; wait until it has finished"),
        "BUSY" => {
            unavailable(message, "a script of another program blocks the server; SCRIPT KILL can end it")
        }
        "MASTERDOWN" | "CLUSTERDOWN" | "NOREPLICAS" | "TRYAGAIN" | "UNBLOCKED" => {
            unavailable(message, "wait until all parts of the cluster run again")
        }
        "MISCONF" => unavailable(message, "the server cannot write to its disk; check its log"),
        NOSCRIPT => unavailable(
            message,
            "another program keeps removing the server's scripts (SCRIPT FLUSH); stop it",
        ),
        "NOAUTH" | "WRONGPASS" | NOPERM => not_allowed(message),
        "MOVED" | "ASK" | "CROSSSLOT" => Error::new(ErrorKind::Unsupported, message)
            .with_hint("this server is part of a cluster: write redis+cluster://host:6379"),
        FORMAT => other_format(refusal.details().unwrap_or("0")),
        STATELESS => stateless(),
        "WRONGTYPE" => Error::new(ErrorKind::Corrupt, message).with_hint(
            "another program has written a key of the store; punctual doctor says which, and what to do",
        ),
        _ => Error::new(ErrorKind::Corrupt, message)
            .with_hint("run punctual doctor, which also checks the rights of the user, and punctual audit"),
    };
    // The cause can quote stored values, but names the line of the script.
    error.with_source(RedisError::from(refusal.clone()))
}

/// Makes the error for a shard whose state is gone or damaged. Nothing was read or changed.
pub(crate) fn stateless() -> Error {
    let message = "the state of the store is gone or damaged (key s of its prefix), and its jobs are still there; nothing was changed";
    Error::new(ErrorKind::Corrupt, message)
        .with_hint("find out what removes keys of the store, then run punctual audit --repair with the address of the Redis server")
}

/// Returns whether a call was refused because the state of its shard is gone or damaged.
pub(crate) fn is_stateless(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<RedisError>());
    cause.is_some_and(|cause| cause.code() == Some(STATELESS))
}

/// Makes the error for a store of another version. Nothing was read or changed. `found` is its format, 0 before
/// formats were numbered.
pub(crate) fn other_format(found: &str) -> Error {
    let message = format!(
        "the store has format {found}, and this punctual knows formats {FORMAT_MIN} to {OWN_FORMAT}; nothing was changed"
    );
    let is_newer = found.parse::<u16>().is_ok_and(|found| OWN_FORMAT < found);
    let kind = if is_newer { ErrorKind::Outdated } else { ErrorKind::Unsupported };
    Error::new(kind, message).with_hint(if is_newer {
        "stop this process, and start the newer punctual that the store was made or upgraded by"
    } else {
        "let the older punctual that made the store finish its jobs, or choose another prefix=… in the address"
    })
}

fn unavailable(message: String, hint: &str) -> Error {
    Error::new(ErrorKind::Unavailable, message).with_hint(hint)
}

/// Not `Invalid`: the call is not at fault, and a repetition does not help until the server or the address is
/// changed.
fn not_allowed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
        .with_hint("check the user and the password in the address, and the permissions of the user")
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn refusal(line: &str) -> ServerError {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let Value::ServerError(refusal) = reply else { panic!("{reply:?}") };
        refusal
    }

    #[test]
    fn refusals_are_told_apart_by_their_codes() {
        for (line, expected) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::StoreFull),
            ("READONLY You can't write against a read only replica.", ErrorKind::Unavailable),
            ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable),
            ("BUSY Redis is busy running a script.", ErrorKind::Unavailable),
            ("MASTERDOWN Link with MASTER is down", ErrorKind::Unavailable),
            ("CLUSTERDOWN Hash slot not served", ErrorKind::Unavailable),
            ("NOREPLICAS Not enough good replicas to write.", ErrorKind::Unavailable),
            ("MISCONF Redis is configured to save RDB snapshots", ErrorKind::Unavailable),
            ("NOSCRIPT No matching script.", ErrorKind::Unavailable),
            ("WRONGPASS invalid username-password pair", ErrorKind::Unsupported),
            ("NOAUTH Authentication required.", ErrorKind::Unsupported),
            ("NOPERM this user has no permissions", ErrorKind::Unsupported),
            ("MOVED 3999 127.0.0.1:6381", ErrorKind::Unsupported),
            ("FORMAT 7", ErrorKind::Outdated),
            ("FORMAT 0", ErrorKind::Unsupported),
            ("STATELESS shard", ErrorKind::Corrupt),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", ErrorKind::Corrupt),
            ("ERR user_script:1: Script attempted to access nonexistent global variable", ErrorKind::Corrupt),
            ("WHATEVER comes", ErrorKind::Corrupt),
        ] {
            let error = refused("enqueue", &refusal(line));
            assert_eq!(error.kind(), expected, "{line}");
            assert!(error.hint().is_some(), "{line}");
        }
    }

    #[test]
    fn a_database_that_the_server_does_not_have_is_no_server_that_is_away() {
        let cause = (
            redis::ServerErrorKind::ResponseError.into(),
            "Redis server refused to switch database",
            "DB index is out of range".to_owned(),
        );
        let error = unreachable(cause.into());
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.hint().is_some_and(|hint| hint.contains("redis://host/0")), "{error}");
    }

    #[test]
    fn a_server_that_has_no_room_for_a_connection_is_tried_again() {
        let full = refusal("ERR max number of clients reached");
        assert_eq!(unreachable(full.into()).kind(), ErrorKind::Unavailable);
        let wrong = refusal("WRONGPASS invalid username-password pair");
        assert_eq!(unreachable(wrong.into()).kind(), ErrorKind::Unsupported);
    }
}
