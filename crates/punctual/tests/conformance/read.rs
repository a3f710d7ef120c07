//! Reads: one job, lists, counters, what is due when, and what a store tells of itself.

use punctual::{
    ErrorKind, NewJob, Payload, Priority, State, Timestamp, When,
    job::{Concurrency, Filter},
    store::{Counts, Durability, Histogram, List, ListCursor, Upcoming, Verdict},
};

use crate::fixture::{CANCEL, Fixture, QUEUE, at, bytes, dead, ids, millis, retry, secs};

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
    let bulk = t
        .add_with(|job| {
            job.queue = "bulk".to_owned();
            job.payload = Payload::json(r#"{"user":{"id":42}}"#);
        })
        .await;
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
        ("payload.user.id:42", vec![bulk]),
        ("payload.user.id:4", vec![]),
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

/// S13: a page ends with the job that brings what its filter compares to 32 MiB; all pages together find everything.
pub(crate) async fn a_page_ends_when_its_filter_has_compared_much(t: Fixture) {
    let long = format!(r#"{{"a":"{}"}}"#, "b".repeat(600_000));
    for _ in 0..3 {
        t.add_with(|job| job.payload = Payload::json(long.clone())).await;
    }
    // Each value with stars is searched for in the whole text.
    let filter = Filter::parse(&["-payload.a:*c*"; 63].join(" ")).expect("a filter within the limits");
    let (mut after, mut found, mut searched) = (None, 0, Vec::new());
    loop {
        let page = List { filter: filter.clone(), after, limit: 1_000 };
        let page = t.store.list(&page).await.expect("a page within the limits");
        found += page.jobs.len();
        searched.push(page.searched);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((found, searched), (3, vec![1, 1, 1]));
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
    t.pass(2).await;
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
    t.pass(1).await;
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
    t.add_with(|job| job.queue = "bulk".to_owned()).await;
    for name in ["nobody", ""] {
        assert_eq!(t.store.count(Some(name)).await.unwrap(), Counts::default());
    }
    assert_eq!(t.store.queues(None).await.unwrap(), ["bulk"]);
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
    t.pass(10).await;
    assert_eq!(t.counts().await, stand(1, 1, 1, 0));
    t.reserve_one().await;
    t.pass(15).await;
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
    t.pass(2).await;
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
    t.pass(1).await;
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
    for name in ["nobody", ""] {
        upcoming.queue = Some(name.to_owned());
        assert_eq!(t.store.upcoming(&upcoming).await.unwrap().buckets, [0, 0]);
    }
}

/// S13: what is counted of all queues is the sum of what is counted of each, however many there are, and whatever they hold.
pub(crate) async fn many_queues_are_counted_as_each_of_them_is(t: Fixture) {
    let mut jobs = Vec::new();
    let mut put = |queue: &str, change: &dyn Fn(&mut NewJob)| {
        let mut job = t.job();
        job.queue = queue.to_owned();
        change(&mut job);
        jobs.push(job);
    };
    let after = |n| move |job: &mut NewJob| job.run_at = When::In(secs(n));
    let names: Vec<String> = (0..700).map(|n| format!("q{n:03}")).collect();
    for (n, queue) in names.iter().enumerate() {
        put(queue, &|_| ());
        if n % 2 == 0 {
            put(queue, &|job| (job.options.priority, job.run_at) = (Some(Priority::High), When::In(secs(5))));
        }
        if n % 5 == 0 {
            put(queue, &|job| job.group = Some("a".to_owned()));
            put(queue, &|job| (job.group, job.run_at) = (Some("b".to_owned()), When::In(secs(15))));
        }
        if n % 7 == 0 {
            put(queue, &after(25));
        }
    }
    for n in 0..400 {
        // One is due in the last millisecond of the first bucket.
        put("bulk", &|job| job.run_at = When::In(millis((50_u64 * n).saturating_sub(1))));
    }
    for n in 0..200 {
        put("edge", &after(if n < 100 { 9 } else { 11 }));
    }
    for _ in 0..3 {
        put("keys", &|job| job.concurrency = Some(Concurrency { key: "k".to_owned(), limit: 1 }));
    }
    for jobs in jobs.chunks(1_000) {
        t.enqueue_all(jobs).await;
    }
    let mut runs = Vec::new();
    for queue in ["keys", "q001", "q003", "q009", "q011", "q013"] {
        runs.extend(t.reserve_by(&t.want_from(&[(queue, 1)], 1)).await.jobs);
    }
    // All in one call, so that the reserve meets the two jobs whose key is taken.
    assert_eq!(ids(&t.reserve_by(&t.want_from(&[("keys", 1)], 1)).await), []);
    t.end(&runs[1], Verdict::Ack).await;
    t.end(&runs[2], dead()).await;
    t.apply(runs[3].job.id, CANCEL).await;
    t.end(&runs[3], Verdict::Ack).await;
    t.end(&runs[4], retry(secs(60))).await;

    // 695 jobs that were due at once, 140 of groups, the first of `bulk`, and two of `keys`.
    let due = 838;
    let waiting = due + 350 + 140 + 100 + 399 + 200 + 1;
    let counts = Counts {
        waiting,
        retrying: 1,
        due,
        running: 2,
        done: 2,
        dead: 1,
        cancelled: 0,
        bytes: waiting + 2,
        parts_away: 0,
    };
    assert_eq!(t.store.count(None).await.unwrap(), counts);
    let mut upcoming = Upcoming { queue: None, bucket: secs(10), buckets: 2 };
    let all = fields_of(t.store.upcoming(&upcoming).await.unwrap());
    assert_eq!(all, (at(0), due, vec![350 + 200 + 100, 140 + 199 + 100], true));

    let mut sum = (0, 0, vec![0, 0], 0);
    for queue in names.iter().map(String::as_str).chain(["bulk", "edge", "keys"]) {
        let counts = t.store.count(Some(queue)).await.unwrap();
        upcoming.queue = Some(queue.to_owned());
        let (_, overdue, buckets, _) = fields_of(t.store.upcoming(&upcoming).await.unwrap());
        assert_eq!(overdue, counts.due, "{queue}");
        sum = (sum.0 + counts.total(), sum.1 + counts.due, sum.2, sum.3 + counts.bytes);
        for (sum, jobs) in sum.2.iter_mut().zip(buckets) {
            *sum += jobs;
        }
    }
    assert_eq!(sum, (counts.total(), counts.due, all.2, counts.bytes));
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
