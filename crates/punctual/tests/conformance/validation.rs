//! Limits, checked on entry: a call that breaks one is refused as a whole, before any write.

use std::collections::BTreeMap;

use punctual::{
    ErrorKind, NewJob, OnConflict, Timestamp, Unique, When,
    job::Concurrency,
    store::{Action, Lease, QueueOp, Reserve, Settlement, Take, Target, Upcoming, Verdict},
};

use crate::fixture::{CANCEL, Fixture, QUEUE, at, bytes, millis, secs};

/// S2, S13: one job over a limit refuses its whole call, also the jobs in front of it.
pub(crate) async fn one_bad_job_refuses_its_whole_call(t: Fixture) {
    let jobs = [t.job(), t.job_with(|job| job.kind = String::new())];
    assert_eq!(t.refused(&jobs).await, ErrorKind::Invalid);
    assert_eq!(t.find(jobs[0].id).await, None);
    assert_eq!(t.store.queues(None).await.unwrap(), [""; 0]);
}

/// S13: names have lengths, and queues a little more.
pub(crate) async fn names_are_checked(t: Fixture) {
    let long = || "x".repeat(256);
    let bad: [fn(&mut NewJob, String); 6] = [
        |job, long| job.kind = long,
        |job, long| job.queue = long,
        |job, long| job.group = Some(long),
        |job, long| job.concurrency = Some(Concurrency { key: long, limit: 1 }),
        |job, long| job.unique = Some(Unique::key(long)),
        |job, long| job.tags = vec![long],
    ];
    for make_bad in bad {
        assert_eq!(t.refused(&[t.job_with(|job| make_bad(job, long()))]).await, ErrorKind::Invalid);
        t.add_with(|job| make_bad(job, "x".repeat(255))).await;
    }
    for queue in ["", "$system", "a\nb", "a\0b", "a ", "\u{a0}a", ".", ".."] {
        assert_eq!(t.refused(&[t.job_with(|job| job.queue = queue.to_owned())]).await, ErrorKind::Invalid);
    }
    for kind in ["a\n", "a\rb", " a", "a "] {
        assert_eq!(t.refused(&[t.job_with(|job| job.kind = kind.to_owned())]).await, ErrorKind::Invalid);
    }
    for plain in ["a b", "a.b", "...", "ä", "a,b*"] {
        t.add_with(|job| (job.kind, job.queue) = (plain.to_owned(), plain.to_owned())).await;
    }
}

/// S13: what older versions stored under names that no new job can have goes on: a tick, the job of a publication, and their queue.
pub(crate) async fn old_names_go_on(t: Fixture) {
    let old = |header: &str| {
        t.job_with(|job| {
            (job.kind, job.queue) = ("old\nkind".to_owned(), "old ".to_owned());
            job.headers = BTreeMap::from([(header.to_owned(), "name".to_owned())]);
        })
    };
    t.enqueue_all(&["schedule", "topic"].map(old)).await;
    let queue = async |op: QueueOp| t.store.queue("old ", &op).await;
    let set = QueueOp::Set(Box::default());
    assert_eq!(queue(set).await.unwrap_err().kind(), ErrorKind::Invalid, "it could be a new one");
    for op in [QueueOp::Resume, QueueOp::Show] {
        queue(op).await.unwrap();
    }
    let want = t.want_from(&[("old ", 1)], 2);
    let kinds: Vec<String> = t.reserve_by(&want).await.jobs.into_iter().map(|run| run.job.kind).collect();
    assert_eq!(kinds, ["old\nkind", "old\nkind"]);
}

/// S13: each option of a job has its bounds.
pub(crate) async fn options_are_checked(t: Fixture) {
    let bad: [fn(&mut NewJob); 12] = [
        |job| job.options.max_attempts = Some(0),
        |job| job.options.max_attempts = Some(10_001),
        |job| job.options.lease = Some(millis(999)),
        |job| job.options.lease = Some(secs(86_401)),
        |job| job.options.timeout = Some(secs(0)),
        |job| job.options.timeout = Some(secs(604_801)),
        |job| job.concurrency = Some(Concurrency { key: "c".to_owned(), limit: 0 }),
        |job| job.unique = Some(Unique::key("k").window(secs(0))),
        |job| job.unique = Some(Unique::key("k").on_conflict(OnConflict::Reschedule).if_version(1)),
        |job| job.tags = vec!["t".to_owned(); 17],
        |job| job.run_at = When::In(millis(200_000_000_000_001)),
        |job| job.expires_at = Some(When::In(millis(200_000_000_000_001))),
    ];
    for make_bad in bad {
        assert_eq!(t.refused(&[t.job_with(make_bad)]).await, ErrorKind::Invalid);
    }
    let headers = BTreeMap::from([("h".to_owned(), "x".repeat(8_192))]);
    assert_eq!(t.refused(&[t.job_with(|job| job.headers = headers)]).await, ErrorKind::TooLarge);
}

/// S5: a job must not expire at or before it is due; what is due by now expires after now.
pub(crate) async fn a_job_expires_after_it_is_due(t: Fixture) {
    let pairs = [
        (When::In(secs(5)), When::In(secs(5))),
        (When::Now, When::At(at(0))),
        (When::Now, When::At(Timestamp::saturating_from_ms(1))),
        (When::At(at(10)), When::At(at(9))),
    ];
    for (run_at, expires_at) in pairs {
        let job = t.job_with(|job| (job.run_at, job.expires_at) = (run_at, Some(expires_at)));
        assert_eq!(t.refused(&[job]).await, ErrorKind::Invalid);
    }
    t.add_with(|job| job.expires_at = Some(When::At(at(1)))).await;
}

/// S13: a payload has up to 1 MiB.
pub(crate) async fn a_payload_has_up_to_a_mebibyte(t: Fixture) {
    let of = |n| t.job_with(|job| job.payload = bytes(n));
    assert_eq!(t.refused(&[of(1_048_577)]).await, ErrorKind::TooLarge);
    assert!(t.enqueue(of(1_048_576)).await.is_new());
}

/// S13: payloads of one call have up to 1 MiB together.
pub(crate) async fn payloads_of_one_call_have_up_to_a_mebibyte(t: Fixture) {
    let of = |n| t.job_with(|job| job.payload = bytes(n));
    assert_eq!(t.refused(&[of(1_048_576), of(1)]).await, ErrorKind::TooLarge);
    assert_eq!(t.enqueue_all(&[of(1_048_575), of(1)]).await.len(), 2);
    assert_eq!(t.counts().await.waiting, 2);
}

/// S13: a batch of any verb has up to 1,000 items.
pub(crate) async fn a_batch_has_up_to_a_thousand_items(t: Fixture) {
    let many: Vec<NewJob> = (0..1_001).map(|_| t.job()).collect();
    assert_eq!(t.refused(&many).await, ErrorKind::Invalid);
    assert_eq!(t.enqueue_all(&many[..1_000]).await.len(), 1_000);
    let lease = Lease { job: many[0].id, fence: 1 };
    let settlements = vec![Settlement { lease, verdict: Verdict::Ack }; 1_001];
    let take = Take { queue: QUEUE.to_owned(), n: 1_001, older_than: secs(0) };
    let targets = vec![Target::from(many[0].id); 1_001];
    let kinds = [
        t.store.reserve(&t.want(1_001)).await.err(),
        t.store.extend(&vec![lease.into(); 1_001]).await.err(),
        t.store.settle(&settlements, None).await.err(),
        t.store.take(&take).await.err(),
        t.store.act(&targets, &CANCEL).await.err(),
        t.store.sweep(1_001).await.err(),
        t.store.sweep(0).await.err(),
    ]
    .map(|refused| refused.expect("it is over the limit").kind());
    assert_eq!(kinds, [ErrorKind::Invalid; 7]);
    assert_eq!(t.reserve(1_000).await.jobs.len(), 1_000);
}

/// S13: a reserve has up to 64 queues, a bound of up to 1,000 for each, and a lease within its bounds.
pub(crate) async fn a_reserve_is_checked(t: Fixture) {
    t.add().await;
    let names: Vec<String> = (0..65).map(|n| format!("q{n}")).collect();
    let queues: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let bad = [
        t.want_from(&queues, 1),
        t.want_from(&[("", 1)], 1),
        t.want_at_most(&[(QUEUE, 1_001)], 1),
        Reserve { lease: Some(millis(999)), ..t.want(1) },
        Reserve { lease: Some(secs(86_401)), ..t.want(1) },
    ];
    for want in bad {
        assert_eq!(t.store.reserve(&want).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(t.counts().await.waiting, 1);
    assert_eq!(t.reserve_by(&t.want_from(&queues[..64], 1)).await.jobs, []);
}

/// S13: an edit of several jobs is refused if it would write more than 1 MiB; of one job it is not.
pub(crate) async fn an_edit_is_refused_as_a_whole(t: Fixture) {
    let added = t.add_many(2).await;
    let targets: Vec<Target> = added.iter().map(|&id| id.into()).collect();
    let edit = Action::EditPayload(bytes(524_289));
    assert_eq!(t.store.act(&targets, &edit).await.unwrap_err().kind(), ErrorKind::TooLarge);
    let too_large = Action::EditPayload(bytes(1_048_577));
    assert_eq!(t.store.act(&targets[..1], &too_large).await.unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(t.counts().await.bytes, 2);
    assert_eq!(t.store.act(&targets[..1], &edit).await.unwrap().len(), 1);
}

/// S13: a reschedule has the bounds of an enqueue.
pub(crate) async fn a_reschedule_is_checked(t: Fixture) {
    let id = t.add().await;
    let far = Action::Reschedule(When::In(millis(200_000_000_000_001)));
    assert_eq!(t.store.act(&[id.into()], &far).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(t.get(id).await.version, 1);
}

/// S13: a histogram has 1 to 1,000 buckets of at least a millisecond.
pub(crate) async fn a_histogram_is_checked(t: Fixture) {
    for (bucket, buckets) in [(secs(1), 0), (secs(1), 1_001), (secs(0), 1)] {
        let upcoming = Upcoming { queue: None, bucket, buckets };
        assert_eq!(t.store.upcoming(&upcoming).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
}
