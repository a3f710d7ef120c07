//! Defaults: what a store keeps of them, and which version's apply.

use punctual::{
    State,
    store::{Keep, Order, QueueOp, QueueReply, QueueSettings},
    testing::{Defaults, assume_defaults},
};

use crate::fixture::{Fixture, KIND, QUEUE, memory, reopen, retry, secs};

/// Which store a version of other defaults is to open.
const PLACE: &str = "PUNCTUAL_TEST_PLACE";
/// A queue of which nothing is set.
const PLAIN: &str = "plain";
/// A queue of which everything that matters is.
const CHOSEN: &str = "chosen";
const KEPT: Keep = Keep { age_ms: 3_600_000, count: 5, bytes: 1 << 20 };
/// The defaults of the other version.
const OTHER: Defaults = Defaults {
    short: Keep { age_ms: 1_000, count: 10, bytes: 1 << 20 },
    long: Keep { age_ms: 2_000, count: 20, bytes: 1 << 20 },
    max_attempts: 1,
};

/// S17: what nobody chose is not kept: the default applies of the version that reads it, whoever made the queue or the job.
pub(crate) async fn what_nobody_chose_follows_the_version_that_reads_it(t: Fixture) {
    let place = t.place.clone();
    if place.is_some() {
        write(&t).await;
    }
    // Defaults are those of a process, and this one has other cases.
    let mut other = std::process::Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "defaults::another_version", "--ignored", "--nocapture"]);
    let said = other.env(PLACE, place.unwrap_or_default()).output().unwrap();
    let text = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(said.status.success() && text.contains("1 passed"), "{text}");
}

/// What one version leaves.
async fn write(t: &Fixture) {
    t.set(|settings| settings.order = Order::Lifo).await;
    let chosen = QueueSettings { done: KEPT, ..QueueSettings::default() };
    t.store.queue(CHOSEN, &QueueOp::Set(Box::new(chosen))).await.unwrap();
    for queue in [QUEUE, PLAIN, CHOSEN] {
        t.add_with(|job| job.queue = queue.to_owned()).await;
    }
    let done = t.reserve_by(&t.want_from(&[(QUEUE, 1), (PLAIN, 1), (CHOSEN, 1)], 3)).await.jobs;
    for run in &done {
        assert_eq!(t.end(run, punctual::store::Verdict::Ack).await.state, State::Done);
    }
    t.add().await;
    t.add_with(|job| {
        job.kind = "chosen".to_owned();
        job.options.max_attempts = Some(20);
    })
    .await;
}

/// What another one reads of it.
async fn read(t: &Fixture) {
    let mut done = Vec::new();
    for queue in [QUEUE, PLAIN, CHOSEN] {
        match t.store.queue(queue, &QueueOp::Show).await.unwrap() {
            QueueReply::Info(info) => {
                done.push((info.settings.done, info.settings.dead, info.settings.order));
            }
            other => panic!("{queue}: {other:?}"),
        }
    }
    let expected = [
        (OTHER.short, OTHER.long, Order::Lifo),
        (OTHER.short, OTHER.long, Order::Fifo),
        (KEPT, OTHER.long, Order::Fifo),
    ];
    assert_eq!(done, expected);
    assert_eq!(t.sweep(1_000).await.removed, 2, "done jobs past the other default");
    let mut runs = t.reserve(2).await.jobs;
    runs.sort_by(|a, b| a.job.kind.cmp(&b.job.kind));
    let tries: Vec<_> = runs.iter().map(|run| (run.job.kind.as_str(), run.job.max_attempts)).collect();
    assert_eq!(tries, [("chosen", 20), (KIND, 1)]);
    let mut ends = Vec::new();
    for run in &runs {
        ends.push(t.end(run, retry(secs(1))).await.state);
    }
    assert_eq!(ends, [State::Waiting, State::Dead]);
}

/// The other version, in a process of its own.
#[tokio::test]
#[ignore = "a part of the case above"]
async fn another_version() {
    let place = std::env::var(PLACE).expect("the case says where");
    let t = if place.is_empty() {
        let t = memory().await;
        write(&t).await;
        assume_defaults(OTHER);
        t
    } else {
        assume_defaults(OTHER);
        reopen(&place).await
    };
    t.pass(10).await;
    read(&t).await;
}
