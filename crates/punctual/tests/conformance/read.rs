//! Reads: one job, lists, counters, what is due when, and what a store tells of itself.

use punctual::{
    ErrorKind, State, Timestamp, When,
    job::Filter,
    store::{Counts, Durability, Histogram, List, ListCursor, Upcoming, Verdict},
};

use crate::fixture::{Fixture, QUEUE, at, bytes, dead, retry, secs};

/// S2: a job that nobody enqueued is not there.
pub(crate) async fn an_unknown_job_is_not_found(t: Fixture) {
    assert_eq!((t.find(t.id(0)).await, t.holder("k").await), (None, None));
}

// ── list ──

/// S13: all jobs are listed, whatever their queue, state and time; a page goes on where the last one ended.
pub(crate) async fn all_jobs_are_listed(t: Fixture) {
    let run = t.run().await;
    t.end(&run, Verdict::Ack).await;
    let later = t.add_with(|job| job.run_at = When::In(secs(60))).await;
    let bulk = t.add_with(|job| job.queue = "bulk".to_owned()).await;
    for limit in [1, 2, 3, 1_000] {
        assert_eq!(t.list("", limit).await, [bulk, later, run.job.id]);
    }
}

/// S13: a list finds what its filter says, in each of its words.
pub(crate) async fn a_list_finds_what_its_filter_says(t: Fixture) {
    let run = t.run_with(|job| job.tags = vec!["vip".to_owned()]).await;
    t.end(&run, dead()).await;
    let failed = t.run().await;
    t.end(&failed, retry(secs(60))).await;
    let bulk = t.add_with(|job| job.queue = "bulk".to_owned()).await;
    for (filter, found) in [
        ("state:dead", vec![run.job.id]),
        ("state:waiting", vec![bulk, failed.job.id]),
        ("state:retrying", vec![failed.job.id]),
        ("state:dead,waiting queue:mail", vec![failed.job.id, run.job.id]),
        ("queue:bulk", vec![bulk]),
        ("tag:vip", vec![run.job.id]),
        ("-tag:vip queue:mail", vec![failed.job.id]),
        ("error:route", vec![failed.job.id]),
        ("due:>30s", vec![failed.job.id]),
        ("state:running", vec![]),
    ] {
        assert_eq!(t.list(filter, 10).await, found, "{filter}");
    }
}

/// S13: a page ends with the job that brings its payloads to 4 MiB; all pages together find everything.
pub(crate) async fn a_page_ends_at_four_mebibytes(t: Fixture) {
    const LARGE: usize = 1_000_000;
    for _ in 0..7 {
        t.add_with(|job| job.payload = bytes(LARGE)).await;
    }
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = List { filter: Filter::default(), after, limit: 1_000 };
        let page = t.store.list(&page).await.expect("a page within the limits");
        assert!(page.jobs.len() <= 5, "a page of {} MB", page.jobs.len());
        found.extend(page.jobs.iter().map(|job| job.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), 7);
}

/// S13: a page looks at 1,000 jobs beyond those that it returns; all pages together find everything.
pub(crate) async fn pages_are_bounded_and_complete(t: Fixture) {
    let oldest = t.add_with(|job| job.tags = vec!["vip".to_owned()]).await;
    t.add_many(1_000).await;
    t.add_many(500).await;
    let newest = t.add_with(|job| job.tags = vec!["vip".to_owned()]).await;
    assert_eq!(t.list("tag:vip", 10).await, [newest, oldest]);
    assert_eq!(t.list("", 1_000).await.len(), 1_502);
}

/// S13: a page says how many jobs there are, and which time it goes by.
pub(crate) async fn a_page_says_what_there_is(t: Fixture) {
    t.add_many(3).await;
    t.take(1).await;
    t.pass(2);
    let list = List { filter: Filter::all(), after: None, limit: 2 };
    let page = t.store.list(&list).await.unwrap();
    assert_eq!((page.now, page.total, page.jobs.len()), (at(2_000), 3, 2));
    assert!(page.next.is_some());
}

/// S13: the limit of a page is 1 to 1,000.
pub(crate) async fn the_limit_of_a_page_is_checked(t: Fixture) {
    for limit in [0, 1_001] {
        let list = List { filter: Filter::all(), after: None, limit };
        assert_eq!(t.store.list(&list).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

/// S13: a listing goes on from what a page ended with, and refuses anything else.
pub(crate) async fn a_listing_goes_on_from_pages_only(t: Fixture) {
    t.add_many(1).await;
    for text in ["", "tx", "t123", "z00", "é", "nothing", &format!("t{}", "00".repeat(10_000))] {
        let after = Some(ListCursor::from(text.to_owned()));
        let list = List { filter: Filter::all(), after, limit: 10 };
        let error = t.store.list(&list).await.expect_err(text);
        assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Invalid, true), "{text}");
    }
}

/// S11: a listed job is the job as `get` knows it.
pub(crate) async fn a_listed_job_is_the_job_itself(t: Fixture) {
    let run = t.run().await;
    t.end(&run, retry(secs(1))).await;
    t.pass(1);
    let run = t.reserve_one().await;
    let list = List { filter: Filter::all(), after: None, limit: 1 };
    assert_eq!(t.store.list(&list).await.unwrap().jobs, std::slice::from_ref(&run.job));
    assert_eq!(t.get(run.job.id).await, run.job);
}

// ── counters ──

/// S13: counters are exact, per queue and over all; bytes are those of waiting and running jobs.
pub(crate) async fn counters_are_exact(t: Fixture) {
    for end in [Verdict::Ack, Verdict::Ack, dead(), Verdict::Cancel { reason: None }, retry(secs(60))] {
        let run = t.run_with(|job| job.payload = bytes(10)).await;
        t.end(&run, end).await;
    }
    t.run_with(|job| job.payload = bytes(7)).await;
    t.add_with(|job| (job.payload, job.run_at) = (bytes(5), When::In(secs(60)))).await;
    t.add_with(|job| job.payload = bytes(3)).await;
    t.add_with(|job| job.queue = "bulk".to_owned()).await;
    let mail = Counts {
        waiting: 3,
        retrying: 1,
        due: 1,
        running: 1,
        done: 2,
        dead: 1,
        cancelled: 1,
        bytes: 25,
        parts_away: 0,
    };
    let all = Counts { waiting: 4, due: 2, bytes: 26, ..mail };
    assert_eq!((t.counts().await, t.info().await.counts), (mail, mail));
    assert_eq!(t.store.count(None).await.unwrap(), all);
    assert_eq!(all.total(), 9);
}

/// S13: an unknown queue counts nothing.
pub(crate) async fn an_unknown_queue_counts_nothing(t: Fixture) {
    assert_eq!(t.store.count(Some("nobody")).await.unwrap(), Counts::default());
    assert_eq!(t.store.queues(None).await.unwrap(), [""; 0]);
}

/// S9, S13: counters follow a job through every turn of its life.
pub(crate) async fn counters_follow_a_job(t: Fixture) {
    let stand = |waiting, retrying, due, running| Counts {
        waiting,
        retrying,
        due,
        running,
        bytes: 1,
        ..Counts::default()
    };
    t.add().await;
    assert_eq!(t.counts().await, stand(1, 0, 1, 0));
    let run = t.reserve_one().await;
    assert_eq!(t.counts().await, stand(0, 0, 0, 1));
    t.end(&run, retry(secs(10))).await;
    assert_eq!(t.counts().await, stand(1, 1, 0, 0));
    t.pass(10);
    assert_eq!(t.counts().await, stand(1, 1, 1, 0));
    t.reserve_one().await;
    t.pass(15);
    t.reserve(0).await;
    assert_eq!(t.counts().await, stand(1, 1, 1, 0));
    t.take(1).await;
    assert_eq!(t.counts().await, Counts { done: 1, ..Counts::default() });
}

/// S13: due jobs are counted up to 100,000; all that wait are counted.
pub(crate) async fn due_jobs_are_counted_up_to_a_hundred_thousand(t: Fixture) {
    for _ in 0..101 {
        t.add_many(1_000).await;
    }
    assert_eq!((t.counts().await.due, t.counts().await.waiting), (100_000, 101_000));
}

/// S13: due jobs are counted in a paused queue as well.
pub(crate) async fn due_jobs_of_a_paused_queue_are_counted(t: Fixture) {
    t.add_many(2).await;
    t.pause().await;
    assert_eq!(t.counts().await.due, 2);
}

/// S17: a waiting job past its expiry waits in every read, until somebody ends it.
pub(crate) async fn an_expired_job_waits_until_it_is_ended(t: Fixture) {
    let id = t.add_with(|job| job.expires_at = Some(When::In(secs(1)))).await;
    t.pass(2);
    assert_eq!((t.state(id).await, t.list("state:waiting", 10).await), (State::Waiting, vec![id]));
    assert_eq!((t.counts().await.waiting, t.counts().await.due), (1, 1));
    let upcoming = Upcoming { queue: None, bucket: secs(1), buckets: 1 };
    assert_eq!(t.store.upcoming(&upcoming).await.unwrap().overdue, 1);
}

// ── what is due when ──

/// Its fields, in their order.
pub(crate) fn fields_of(histogram: Histogram) -> (Timestamp, u64, Vec<u64>, bool) {
    (histogram.now, histogram.overdue, histogram.buckets, histogram.complete)
}

/// S13: waiting jobs by due time: an instant on a border belongs to the later bucket, what is behind the last to none.
pub(crate) async fn a_histogram_counts_waiting_jobs_by_due_time(t: Fixture) {
    t.pass(1);
    t.run().await;
    for ms in [0, 1, 9_999, 10_000, 29_999, 30_000, 99_000] {
        t.add_with(|job| job.run_at = When::At(at(1_000 + ms))).await;
    }
    t.add_with(|job| (job.queue, job.run_at) = ("bulk".to_owned(), When::In(secs(5)))).await;
    let mut upcoming = Upcoming { queue: Some(QUEUE.to_owned()), bucket: secs(10), buckets: 3 };
    assert_eq!(fields_of(t.store.upcoming(&upcoming).await.unwrap()), (at(1_000), 1, vec![2, 1, 1], true));
    upcoming.queue = None;
    assert_eq!(fields_of(t.store.upcoming(&upcoming).await.unwrap()), (at(1_000), 1, vec![3, 1, 1], true));
}

/// S13: parts of a millisecond widen a bucket to a whole one; an unknown queue has empty buckets.
pub(crate) async fn a_histogram_has_whole_milliseconds(t: Fixture) {
    t.add_with(|job| job.run_at = When::At(at(3))).await;
    let bucket = std::time::Duration::from_micros(1_001);
    let mut upcoming = Upcoming { queue: None, bucket, buckets: 2 };
    assert_eq!(t.store.upcoming(&upcoming).await.unwrap().buckets, [0, 1]);
    upcoming.queue = Some("nobody".to_owned());
    assert_eq!(t.store.upcoming(&upcoming).await.unwrap().buckets, [0, 0]);
}

// ── the store itself ──

/// S1: a store states what `Ok` survives, and its self-examination says the same.
pub(crate) async fn durability_is_stated(t: Fixture) {
    let durability = t.store.durability();
    let level = match durability {
        Durability::Full => "full",
        Durability::Replicated => "replicated",
        Durability::Fast => "fast",
        Durability::Memory => "memory",
        _ => panic!("{durability:?} is no durability that this test knows"),
    };
    let checks = t.store.doctor().await.unwrap();
    let durability = checks.iter().find(|check| check.name == "durability").expect("it is looked at");
    assert!(durability.text.contains(level), "{}", durability.text);
    assert!(!t.store.url().is_empty());
}
