//! Checks whether a notification from a script wakes a waiting process, and how fast. Some servers and proxies do not
//! support this, and workers would find due jobs late.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use redis::Cmd;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{fail, ok, warn};
use crate::{
    core::error::Result,
    store::{
        Check,
        redis::{scripts::script::Script, sharded::shard::Shard},
    },
};

/// From here on a notification is late.
const HEARD_MAX: Duration = Duration::from_millis(200);
/// How long to wait for a notification.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long the listener's call has to reach the server before the notification is sent.
const SETTLE: Duration = Duration::from_millis(50);

static PROBE: LazyLock<Script> = LazyLock::new(|| Script::new("probe", &[include_str!("../lua/probe.lua")]));

/// Listens on a connection of its own while a script notifies.
pub(super) async fn hear(shard: &Shard) -> Result<Check> {
    let key = shard.key(&format!("probe:{:016x}", fastrand::u64(..)));
    let (line, (listening, is_listening)) = (Arc::clone(shard.link.line()), oneshot::channel());
    let mut listen = Cmd::new();
    listen.arg("BZPOPMIN").arg(&key).arg(WAIT_MAX.as_secs());
    let listener = async move {
        let (_, connection) = line.route().connect().await?;
        let _ = listening.send(());
        // A server that never ends the call is given up a little later.
        let heard = timeout(WAIT_MAX * 2, connection.send(&listen)).await;
        heard.ok().transpose().map(|answer| (answer, Instant::now()))
    };
    let notify = async {
        // Fails if the listener could not start, and the listener reports why.
        is_listening.await.ok()?;
        sleep(SETTLE).await;
        let begin = Instant::now();
        let args = [WAIT_MAX.as_millis().to_string().into_bytes()];
        Some(shard.link.call(&PROBE, std::slice::from_ref(&key), &args).await.map(|_| begin))
    };
    let (heard, notified) = tokio::join!(shard.link.thread().run(listener), notify);
    let no_use = "let no proxy between this machine and the server cut or delay waiting connections";
    let (answer, at) = match heard? {
        Ok(heard) => heard,
        Err(cause) => {
            return Ok(fail("bell", format!("could not listen for notifications: {cause}"), no_use));
        }
    };
    let begin = match notified {
        Some(Ok(begin)) => begin,
        Some(Err(e)) => {
            return Ok(fail("bell", format!("could not send a notification: {e}"), "see the other findings"));
        }
        None => return Ok(fail("bell", "could not listen for notifications", no_use)),
    };
    Ok(match answer {
        Some(redis::Value::Array(_)) => {
            let took = at.saturating_duration_since(begin);
            let text =
                format!("a notification from a script arrived after {:.1} ms", took.as_secs_f64() * 1e3);
            if took <= HEARD_MAX { ok("bell", text) } else { warn("bell", text, no_use) }
        }
        Some(redis::Value::ServerError(refusal)) => {
            let text = format!("this user may not listen for notifications: {}", refusal.code());
            fail("bell", text, "allow the user to: redis-cli ACL SETUSER NAME +bzpopmin")
        }
        _ => fail(
            "bell",
            "a notification from a script did not arrive: workers find new jobs up to a minute late",
            no_use,
        ),
    })
}
