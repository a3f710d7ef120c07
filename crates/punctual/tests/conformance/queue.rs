//! Queues: from when they exist, pauses, settings, purge.

use punctual::{
    ErrorKind, JobId, Priority, State, Unique, When,
    store::{
        Action, Enqueued, Keep, LeaseStatus, Order, Pause, Placement, QueueOp, QueueReply, QueueSettings,
        Replace, Verdict,
    },
};

use crate::fixture::{Fixture, QUEUE, START_MS, at, duplicate_of_gone, ids, millis, secs};

fn pause(by: &str, reason: &str) -> QueueOp {
    QueueOp::Pause { by: by.to_owned(), reason: reason.to_owned() }
}

/// S14: a queue exists from its first job on, with the default settings.
pub(crate) async fn a_queue_exists_from_its_first_job_on(t: Fixture) {
    for op in [QueueOp::Show, QueueOp::Resume, QueueOp::Purge(1)] {
        assert_eq!(t.queue(op).await, QueueReply::Unknown);
    }
    t.add().await;
    let info = t.info().await;
    assert_eq!((info.name.as_str(), &info.settings), (QUEUE, &QueueSettings::default()));
    assert_eq!(info.settings.done, Keep { age_ms: 86_400_000, count: 10_000, bytes: 67_108_864 });
    assert_eq!(info.settings.cancelled, info.settings.done);
    assert_eq!(info.settings.dead, Keep { age_ms: 7_776_000_000, count: 100_000, bytes: 268_435_456 });
}

/// S14: a queue exists from its first pause or settings on, without a job, and for ever.
pub(crate) async fn a_queue_exists_from_its_first_pause_or_settings_on(t: Fixture) {
    t.store.queue("paused", &pause("ana", "")).await.unwrap();
    t.store.queue("set", &QueueOp::Set(Box::default())).await.unwrap();
    let id = t.add().await;
    t.apply(id, Action::Delete).await;
    assert_eq!(t.store.queues(None).await.unwrap(), [QUEUE, "paused", "set"]);
}

/// S14: settings are replaced as a whole, and answered as they are now.
pub(crate) async fn settings_are_replaced_as_a_whole(t: Fixture) {
    let mut settings = QueueSettings {
        order: Order::Lifo,
        placement: Placement::Pinned,
        max_jobs: Some(7),
        max_bytes: Some(9),
        done: Keep::NOTHING,
        dead: Keep { age_ms: 1, count: 2, bytes: 3 },
        cancelled: Keep::LONG,
        ..QueueSettings::default()
    };
    settings.defaults.priority = Some(Priority::Low);
    settings.defaults.lease = Some(secs(44));
    let QueueReply::Info(info) = t.queue(QueueOp::Set(Box::new(settings.clone()))).await else {
        panic!("the queue is told");
    };
    assert_eq!((&info.settings, &t.info().await.settings), (&settings, &settings));
    t.set(|_| ()).await;
    assert_eq!(t.info().await.settings, QueueSettings::default());
}

/// S2, S3: settings replace those that the caller saw, and no others; a pause is not compared.
pub(crate) async fn settings_replace_those_that_were_seen(t: Fixture) {
    let of = |n: u64| QueueSettings { max_jobs: Some(n), ..QueueSettings::default() };
    let replace = |seen: QueueSettings, new: QueueSettings| QueueOp::Replace(Box::new(Replace { seen, new }));
    let QueueReply::Conflict(info) = t.queue(replace(of(1), of(2))).await else {
        panic!("a queue that does not exist has the default settings");
    };
    assert_eq!(info.settings, QueueSettings::default());
    assert_eq!(t.queue(QueueOp::Show).await, QueueReply::Unknown, "a conflict makes no queue");
    for seen in [QueueSettings::default(), QueueSettings::default(), of(2)] {
        let QueueReply::Info(info) = t.queue(replace(seen, of(2))).await else {
            panic!("it is replaced, and a repeated call changes nothing");
        };
        assert_eq!(info.settings, of(2));
    }
    let QueueReply::Conflict(info) = t.queue(replace(QueueSettings::default(), of(3))).await else {
        panic!("others came first");
    };
    assert_eq!((&info.settings, &t.info().await.settings), (&of(2), &of(2)));
    t.queue(pause("ana", "deploy")).await;
    let QueueReply::Info(info) = t.queue(replace(of(2), of(3))).await else {
        panic!("a pause is no setting")
    };
    assert_eq!((info.settings.max_jobs, info.settings.paused.is_some()), (Some(3), true));
}

/// S14: a pause is no setting: setting others neither begins nor ends it; a second pause replaces the first.
pub(crate) async fn settings_leave_a_pause_alone(t: Fixture) {
    t.queue(pause("ana", "deploy")).await;
    t.pass(5).await;
    t.queue(pause("ben", "incident")).await;
    let paused =
        Some(Pause { since_ms: START_MS + 5_000, by: "ben".to_owned(), reason: "incident".to_owned() });
    t.set(|queue| queue.max_jobs = Some(5)).await;
    assert_eq!(t.info().await.settings.paused, paused);
    t.queue(QueueOp::Resume).await;
    t.set(|queue| queue.paused = paused.clone()).await;
    assert_eq!(t.info().await.settings.paused, None);
}

/// S4, S6, S17: a queue is pinned and spread while it has jobs, which keep their ids, keys and order, and its cap.
pub(crate) async fn a_queue_is_pinned_and_spread_again(t: Fixture) {
    let invoice = JobId::derived(QUEUE, None, "invoice-7");
    let mut added = vec![t.add_with(|job| job.id = invoice).await];
    added.push(t.add_with(|job| job.unique = Some(Unique::key("k"))).await);
    for placement in [Placement::Pinned, Placement::Spread, Placement::Pinned] {
        t.pass(1).await;
        t.set(|queue| (queue.placement, queue.max_jobs) = (placement, Some(added.len() as u64 + 1))).await;
        added.push(t.add().await);
        assert_eq!(t.info().await.settings.placement, placement);
        for again in
            [t.job_with(|job| job.id = invoice), t.job_with(|job| job.unique = Some(Unique::key("k")))]
        {
            assert!(matches!(t.enqueue(again).await, Enqueued::Duplicate(_)), "{placement:?}");
        }
        assert_eq!((t.holder("k").await, t.state(invoice).await), (Some(added[1]), State::Waiting));
        assert_eq!(t.enqueue(t.job()).await, Enqueued::Full);
    }
    added[..2].sort_unstable();
    assert_eq!(ids(&t.reserve(9).await), added);
}

/// S9: nothing is reserved or taken from a paused queue; it tells neither `more` nor when its jobs are due.
pub(crate) async fn a_paused_queue_gives_no_jobs(t: Fixture) {
    let id = t.add().await;
    t.pause().await;
    t.add_with(|job| job.run_at = When::In(secs(9))).await;
    let batch = t.reserve(5).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, false, None));
    assert_eq!(t.take(5).await, []);
    t.queue(QueueOp::Resume).await;
    assert_eq!(ids(&t.reserve(5).await), [id]);
}

/// S11: a pause holds back starts only: enqueues, heartbeats, settles and acts go on.
pub(crate) async fn a_pause_holds_back_starts_only(t: Fixture) {
    let run = t.run().await;
    t.pause().await;
    let id = t.add().await;
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
    assert_eq!(t.end(&run, Verdict::Ack).await.state, State::Done);
    t.apply(id, Action::RunNow).await;
    assert_eq!(t.counts().await.due, 1);
}

/// S6: a paused queue takes no part in the shares of the others.
pub(crate) async fn a_paused_queue_leaves_its_share_to_the_others(t: Fixture) {
    t.add_many(2).await;
    t.pause().await;
    let bulk = [(); 2].map(|()| t.job_with(|job| job.queue = "bulk".to_owned()));
    t.enqueue_all(&bulk).await;
    let batch = t.reserve_by(&t.want_from(&[(QUEUE, 2), ("bulk", 0)], 2)).await;
    assert_eq!((ids(&batch), batch.more), (vec![bulk[0].id, bulk[1].id], false));
}

/// S13: purge deletes waiting jobs only, due or not, those first that would run first, and says whether some are left.
pub(crate) async fn a_purge_deletes_waiting_jobs_in_their_order(t: Fixture) {
    let run = t.run().await;
    let later = t.add_with(|job| job.run_at = When::In(secs(60))).await;
    let due = t.add_many(2).await;
    assert_eq!(t.queue(QueueOp::Purge(1)).await, QueueReply::Purged { deleted: 1, more: true });
    assert_eq!((t.find(due[0]).await, t.state(due[1]).await), (None, State::Waiting));
    assert_eq!(t.queue(QueueOp::Purge(2)).await, QueueReply::Purged { deleted: 2, more: false });
    assert_eq!((t.find(later).await, t.state(run.job.id).await), (None, State::Running));
    assert_eq!(t.queue(QueueOp::Purge(1)).await, QueueReply::Purged { deleted: 0, more: false });
}

/// S4, S17: who is purged ended then: its key is free, its derived id is remembered.
pub(crate) async fn a_purged_job_frees_its_key_and_is_remembered(t: Fixture) {
    let id = JobId::derived(QUEUE, None, "invoice-7");
    t.add_with(|job| (job.id, job.unique) = (id, Some(Unique::key("k")))).await;
    t.pass(1).await;
    t.queue(QueueOp::Purge(10)).await;
    let again = t.job_with(|job| job.id = id);
    assert_eq!(t.enqueue(again.clone()).await, duplicate_of_gone(id));
    t.add_with(|job| job.unique = Some(Unique::key("k"))).await;
    t.clock.set(at(86_400_999));
    assert_eq!(t.enqueue(again.clone()).await, duplicate_of_gone(id));
    t.clock.advance(millis(1));
    assert!(t.enqueue(again).await.is_new());
}

/// S13: names come in the order of their bytes, behind the one that is named.
pub(crate) async fn queues_are_listed_by_name(t: Fixture) {
    for name in ["b", "ä", "a/1", "B", "a"] {
        t.add_with(|job| job.queue = name.to_owned()).await;
    }
    assert_eq!(t.store.queues(None).await.unwrap(), ["B", "a", "a/1", "b", "ä"]);
    assert_eq!(t.store.queues(Some("a")).await.unwrap(), ["a/1", "b", "ä"]);
    assert_eq!(t.store.queues(Some("a0")).await.unwrap(), ["b", "ä"]);
    assert_eq!(t.store.queues(Some("ä")).await.unwrap(), [""; 0]);
}

/// S13: up to 1,000 names come at once.
pub(crate) async fn a_thousand_queues_are_listed_at_once(t: Fixture) {
    let jobs: Vec<_> = (0..1_000).map(|n| t.job_with(|job| job.queue = format!("q{n:04}"))).collect();
    t.enqueue_all(&jobs).await;
    t.add_with(|job| job.queue = "q9999".to_owned()).await;
    let first = t.store.queues(None).await.unwrap();
    assert_eq!((first.len(), first[999].as_str()), (1_000, "q0999"));
    assert_eq!(t.store.queues(Some("q0999")).await.unwrap(), ["q9999"]);
}

/// S6: a queue tells its counters, and when its oldest due job became due, paused or not.
pub(crate) async fn a_queue_tells_its_oldest_due_job(t: Fixture) {
    t.add_with(|job| job.run_at = When::In(secs(7))).await;
    let first = t.add_with(|job| job.run_at = When::In(secs(3))).await;
    assert_eq!(t.info().await.oldest_due, None);
    t.pause().await;
    t.pass(7).await;
    assert_eq!((t.info().await.oldest_due, t.info().await.counts.due), (Some(at(3_000)), 2));
    t.apply(first, Action::RunNow).await;
    assert_eq!(t.info().await.oldest_due, Some(at(7_000)));
}

/// S13: settings whose defaults break a limit are refused, and so are names and bounds of a purge.
pub(crate) async fn settings_names_and_bounds_are_checked(t: Fixture) {
    let mut settings = QueueSettings::default();
    settings.defaults.max_attempts = Some(0);
    let set = QueueOp::Set(Box::new(settings));
    let bad = [(QUEUE, set), (QUEUE, QueueOp::Purge(0)), (QUEUE, QueueOp::Purge(1_001))];
    let bad_names = ["", "$x", "a\tb"].map(|name| (name, QueueOp::Show));
    for (name, op) in bad.into_iter().chain(bad_names) {
        assert_eq!(t.store.queue(name, &op).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(t.queue(QueueOp::Show).await, QueueReply::Unknown);
}
