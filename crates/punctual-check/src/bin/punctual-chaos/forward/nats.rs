//! The drill on a stream of NATS JetStream, kept in files.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, pull},
    stream,
};
use futures_util::StreamExt as _;
use serde_json::json;

use super::{
    arrivals::Arrivals,
    judge::judge,
    scene::{Bad, SLOTS, Scene},
    streams::{BODY_MAX, Streams},
    wall_us,
};
use crate::{drill::Outcome, profile::Profile};

/// The stream, and the subject of jobs.
const NAME: &str = "orders";
/// Between two attempts of the reader.
const PAUSE: Duration = Duration::from_millis(50);

/// When what happens after the first job is due, and for how long.
struct Plan {
    over: Duration,
    bad: Duration,
    kill: Duration,
    freeze: (Duration, Duration),
    stop: (Duration, Duration),
}

const FULL: Plan = Plan {
    over: Duration::from_mins(1),
    bad: Duration::from_secs(4),
    kill: Duration::from_secs(8),
    freeze: (Duration::from_secs(14), Duration::from_secs(10)),
    stop: (Duration::from_secs(32), Duration::from_secs(30)),
};
const SMALL: Plan = Plan {
    over: Duration::from_secs(7),
    bad: Duration::from_millis(300),
    kill: Duration::from_secs(1),
    freeze: (Duration::from_millis(2_500), Duration::from_millis(800)),
    stop: (Duration::from_millis(4_500), Duration::from_millis(500)),
};

pub(super) async fn run(profile: &Profile, dir: PathBuf) -> Outcome<bool> {
    let plan = if profile.is_small { &SMALL } else { &FULL };
    let mut streams = Streams::start()?;
    let mut scene = Scene::set(profile, dir).await?;
    let context = jetstream::new(async_nats::connect(streams.url()).await?);
    let subjects = vec![NAME.to_owned()];
    context
        .create_stream(stream::Config { name: NAME.to_owned(), subjects, ..stream::Config::default() })
        .await?;
    let reading = tokio::spawn(read(streams.url(), Arc::clone(&scene.arrivals)));
    let to = format!("{}?subject={{header.subject}}&answer=2s", streams.url());
    let route = |subject: &str| vec![("subject", subject.to_owned())];
    let bad = [
        Bad { headers: route("nobody"), bytes: 200, words: "no stream takes the subject nobody", count: 20 },
        Bad { headers: route(NAME), bytes: BODY_MAX + 1, words: "max payload size exceeded", count: 3 },
    ];
    scene.begin(&to, plan.over, &route(NAME), &bad, plan.bad).await?;

    scene.until(plan.kill).await;
    scene.kill()?;

    scene.until(plan.freeze.0).await;
    let begin = wall_us();
    streams.freeze()?;
    tokio::time::sleep(plan.freeze.1).await;
    streams.thaw()?;
    scene.ended("the server held still", begin, SLOTS as u64).await?;

    scene.until(plan.stop.0).await;
    let begin = wall_us();
    streams.kill()?;
    tokio::time::sleep(plan.stop.1 / 2).await;
    scene.kill()?;
    tokio::time::sleep(plan.stop.1 / 2).await;
    streams.restart()?;
    scene.ended("the server killed and started again", begin, SLOTS as u64).await?;

    scene.rest().await?;
    reading.abort();
    judge(&scene, "nats", json!({})).await
}

/// Reads until it is told to end, whatever becomes of the server.
async fn read(url: String, arrivals: Arc<Arrivals>) {
    loop {
        let _ = read_on(&url, &arrivals).await;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn read_on(url: &str, arrivals: &Arrivals) -> Result<(), async_nats::Error> {
    let context = jetstream::new(async_nats::connect(url).await?);
    let stream = context.get_stream(NAME).await?;
    let durable = pull::Config {
        durable_name: Some("reader".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(10),
        max_ack_pending: 20_000,
        ..pull::Config::default()
    };
    let reader = stream.get_or_create_consumer("reader", durable).await?;
    let mut messages = reader.messages().await?;
    while let Some(message) = messages.next().await {
        let message = message?;
        let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
        if let Some(id) = id {
            arrivals.note(id.as_str(), 1 < message.info()?.delivered);
        }
        message.ack().await?;
    }
    Ok(())
}
