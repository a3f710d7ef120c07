//! What runs tell and give, and who waits for it.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use punctual::{
    Client, ErrorKind, JobId, JobRecord, Payload, State, Unique,
    job::{LogLine, Notes, Progress},
    limits::{LOG_LINES_MAX, NOTES_BYTES_MAX, RESULT_BYTES_MAX},
    store::{Action, Heartbeat, Keep, LeaseStatus, QueueOp, Reserved, Settled, Settlement, Verdict},
};
use tokio::time::timeout;

use crate::fixture::{CANCEL, Fixture, QUEUE, WORKER, at, bytes, dead, retry, secs};

/// Less than what `finished` waits between two looks of its own: a waiter that is notified returns within it.
const PATIENCE: Duration = Duration::from_secs(12);

fn with(result: Payload) -> Verdict {
    Verdict::AckWith { result }
}

fn line(text: &str) -> LogLine {
    LogLine { attempt: 1, at_ms: 7, text: text.to_owned() }
}

fn notes(done: u64, text: &str) -> Notes {
    let progress = Progress { done, total: Some(10), message: Some("é\0".to_owned()) };
    Notes { progress: Some(progress), log: vec![line(text)] }
}

impl Fixture {
    async fn tell(&self, run: &Reserved, notes: &Notes) -> LeaseStatus {
        let beat = Heartbeat { lease: run.lease, notes: Some(notes.clone()), company: false, lasts: None };
        self.store.extend(&[beat]).await.expect("notes can be told")[0]
    }

    /// Does something once others have come to wait: each call here goes behind those that they made.
    async fn later<T>(&self, then: impl Future<Output = T>) -> T {
        for _ in 0..20 {
            self.counts().await;
        }
        then.await
    }

    /// Waits for the end of a job, which something else brings about.
    async fn finished(&self, id: JobId) -> Option<JobRecord> {
        let client = Client::new(self.store.clone());
        timeout(PATIENCE, client.finished(id, secs(600))).await.expect("somebody notifies").unwrap()
    }
}

// ── results ──

/// S1: a result is kept with its job, whatever it is.
pub(crate) async fn a_result_is_kept_with_its_job(t: Fixture) {
    let large = Payload::json("7".repeat(RESULT_BYTES_MAX));
    for result in [Payload::json(r#"{"rows":3}"#), bytes(300), bytes(0), Payload::json(""), large] {
        let run = t.run().await;
        let done = t.end(&run, with(result.clone())).await;
        assert_eq!((done.state, done.result, done.reason), (State::Done, Some(result), None));
    }
    let run = t.run().await;
    assert_eq!(t.end(&run, Verdict::Ack).await.result, None);
}

/// S12: a result is an ack: the work was finished.
pub(crate) async fn a_result_wins_over_a_cancel(t: Fixture) {
    let run = t.run().await;
    t.apply(run.job.id, CANCEL).await;
    let done = t.end(&run, with(bytes(3))).await;
    assert_eq!((done.state, done.result), (State::Done, Some(bytes(3))));
}

/// S4: a result ends a job as an ack does: its keys are free.
pub(crate) async fn a_result_frees_the_keys_of_its_job(t: Fixture) {
    let unique = |job: &mut punctual::NewJob| {
        job.unique = Some(Unique::key("k"));
        job.concurrency = Some(punctual::job::Concurrency { key: "c".to_owned(), limit: 1 });
        job.group = Some("g".to_owned());
    };
    let run = t.run_with(unique).await;
    t.end(&run, with(bytes(3))).await;
    t.run_with(unique).await;
}

/// S17: the bytes of results count where the bytes of payloads do.
pub(crate) async fn results_count_against_what_is_kept(t: Fixture) {
    t.set(|queue| queue.done = Keep { bytes: 100, ..queue.done }).await;
    let (first, second) = (t.run_with(|job| job.payload = bytes(20)).await, t.run().await);
    t.end(&first, with(bytes(70))).await;
    t.end(&second, with(bytes(9))).await;
    t.sweep(100).await;
    assert!(t.store.get(first.job.id).await.unwrap().is_some(), "100 of 100 bytes are kept");
    let third = t.run().await;
    t.end(&third, with(bytes(0))).await;
    t.sweep(100).await;
    assert_eq!(t.store.get(first.job.id).await.unwrap(), None);
    assert!(t.store.get(second.job.id).await.unwrap().is_some());
    // What is given back is what was counted.
    t.set(|queue| queue.done = Keep { bytes: 11, ..queue.done }).await;
    t.sweep(100).await;
    assert!(t.store.get(second.job.id).await.unwrap().is_some());
    assert_eq!(t.audit(false).await, []);
}

/// S17: a queue that keeps no done jobs keeps no results.
pub(crate) async fn what_is_not_kept_leaves_no_result(t: Fixture) {
    t.set(|queue| queue.done = Keep { count: 0, ..queue.done }).await;
    let run = t.run().await;
    assert_eq!(t.settle_one(run.lease, with(bytes(9))).await, Settled::Settled(State::Done, None));
    assert_eq!(t.store.get(run.job.id).await.unwrap(), None);
    let run = t.run().await;
    t.tell(&run, &notes(1, "one")).await;
    assert_eq!(t.settle_one(run.lease, Verdict::Ack).await, Settled::Settled(State::Done, None));
    assert_eq!(t.audit(false).await, []);
}

/// S11: an operator's retry begins anew: without what the job told and gave, and with its payload alone counted.
pub(crate) async fn a_retry_begins_without_result_and_notes(t: Fixture) {
    let run = t.run_with(|job| job.payload = bytes(20)).await;
    t.tell(&run, &notes(3, "hi")).await;
    t.end(&run, with(bytes(70))).await;
    t.apply(run.job.id, Action::Retry).await;
    let job = t.get(run.job.id).await;
    assert_eq!((job.result, job.notes, t.counts().await.bytes), (None, Notes::default(), 20));
    let again = t.reserve_one().await;
    let ended = t.end(&again, dead()).await;
    assert_eq!((ended.result, ended.notes), (None, Notes::default()));
    assert_eq!(t.audit(false).await, []);
}

/// S11: a deleted job with a result leaves nothing behind.
pub(crate) async fn a_result_goes_with_its_job(t: Fixture) {
    let run = t.run().await;
    t.end(&run, with(bytes(70))).await;
    t.apply(run.job.id, Action::Delete).await;
    assert_eq!(t.store.get(run.job.id).await.unwrap(), None);
    assert_eq!(t.audit(false).await, []);
}

/// S13: a result over 64 KiB is refused, and so are those of a call over a mebibyte; then nothing is settled.
pub(crate) async fn results_are_bounded(t: Fixture) {
    let runs: Vec<Reserved> = {
        t.add_many(17).await;
        t.reserve(17).await.jobs
    };
    let batch = |runs: &[Reserved], size| -> Vec<Settlement> {
        let end = |run: &Reserved| Settlement { lease: run.lease, verdict: with(bytes(size)) };
        runs.iter().map(end).collect()
    };
    for (n, size) in [(1, RESULT_BYTES_MAX + 1), (17, RESULT_BYTES_MAX)] {
        let refused = t.store.settle(&batch(&runs[..n], size), None).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge, "{n} of {size}");
    }
    let nameless = Payload { content_type: "".into(), ..bytes(1) };
    let batch_of_one = [Settlement { lease: runs[0].lease, verdict: with(nameless) }];
    assert_eq!(t.store.settle(&batch_of_one, None).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(t.counts().await.running, 17);
    let (settled, _) = t.store.settle(&batch(&runs[..16], RESULT_BYTES_MAX), None).await.unwrap();
    assert_eq!(settled, [Settled::Settled(State::Done, None); 16]);
}

// ── notes ──

/// S1: what a run tells is kept with its job and replaces what was told before; it extends the lease.
pub(crate) async fn notes_are_kept_and_replaced(t: Fixture) {
    let run = t.run().await;
    t.pass(10).await;
    assert_eq!(t.tell(&run, &notes(3, "one")).await, LeaseStatus::Held);
    let job = t.get(run.job.id).await;
    assert_eq!((&job.notes, job.running.unwrap().until), (&notes(3, "one"), at(25_000)));
    t.tell(&run, &notes(4, "two")).await;
    assert_eq!(t.get(run.job.id).await.notes, notes(4, "two"));
    // A heartbeat that tells nothing leaves them alone.
    t.extend(run.lease).await;
    assert_eq!(t.get(run.job.id).await.notes, notes(4, "two"));
    assert_eq!(t.end(&run, Verdict::Ack).await.notes, notes(4, "two"));
    let run = t.run().await;
    t.tell(&run, &notes(4, "two")).await;
    t.tell(&run, &Notes::default()).await;
    assert_eq!(t.get(run.job.id).await.notes, Notes::default());
    assert_eq!(t.audit(false).await, []);
}

/// S8: what a lease tells that is not current is not kept.
pub(crate) async fn notes_of_a_stale_lease_are_not_kept(t: Fixture) {
    let old = t.run().await;
    t.pass(15).await;
    let new = t.reserve_one().await;
    t.tell(&new, &notes(1, "new")).await;
    assert_eq!(t.tell(&old, &notes(9, "old")).await, LeaseStatus::Lost);
    assert_eq!(t.get(new.job.id).await.notes, notes(1, "new"));
    t.end(&new, Verdict::Ack).await;
    assert_eq!(t.tell(&new, &notes(9, "late")).await, LeaseStatus::Lost);
    assert_eq!(t.get(new.job.id).await.notes, notes(1, "new"));
}

/// S2: notes stay with their job through retries, takings back and its end, and change nothing else of it.
pub(crate) async fn notes_stay_with_their_job(t: Fixture) {
    let run = t.run_with(|job| job.unique = Some(Unique::key("k").until_start())).await;
    t.tell(&run, &notes(1, "first")).await;
    let failed = t.end(&run, retry(secs(0))).await;
    assert_eq!((&failed.notes, failed.failures.len(), failed.attempt), (&notes(1, "first"), 1, 2));
    let run = t.reserve_one().await;
    assert_eq!(run.job.notes, notes(1, "first"));
    t.tell(&run, &notes(2, "second")).await;
    t.pass(15).await;
    let run = t.reserve_one().await;
    assert_eq!((&run.job.notes, run.job.failures.len(), run.job.attempt), (&notes(2, "second"), 2, 3));
    let mut expected = t.get(run.job.id).await;
    expected.notes = notes(3, "third");
    t.tell(&run, &notes(3, "third")).await;
    assert_eq!(t.get(run.job.id).await, expected);
    let done = t.end(&run, with(bytes(1))).await;
    assert_eq!((done.notes, done.result, done.failures.len()), (notes(3, "third"), Some(bytes(1)), 2));
    assert_eq!(t.audit(false).await, []);
}

/// S13: notes over their limits are refused, and then no lease is extended.
pub(crate) async fn notes_are_bounded(t: Fixture) {
    let run = t.run().await;
    t.pass(5).await;
    let long = Notes { log: vec![line(&"x".repeat(NOTES_BYTES_MAX + 1))], ..Notes::default() };
    let many = Notes { log: vec![line(""); LOG_LINES_MAX + 1], ..Notes::default() };
    let full = Notes { log: vec![line(&"x".repeat(NOTES_BYTES_MAX))], ..Notes::default() };
    let beat = |notes: &Notes| Heartbeat {
        lease: run.lease,
        notes: Some(notes.clone()),
        company: false,
        lasts: None,
    };
    for (beats, kind) in [
        (vec![beat(&long)], ErrorKind::TooLarge),
        (vec![beat(&many)], ErrorKind::Invalid),
        (vec![beat(&full); 257], ErrorKind::TooLarge),
    ] {
        assert_eq!(t.store.extend(&beats).await.unwrap_err().kind(), kind);
    }
    let job = t.get(run.job.id).await;
    assert_eq!((job.notes, job.running.unwrap().until), (Notes::default(), at(15_000)));
    assert_eq!(t.store.extend(&vec![beat(&full); 256]).await.unwrap(), [LeaseStatus::Held; 256]);
    assert_eq!(t.get(run.job.id).await.notes, full);
}

// ── waiting ──

/// S12: who waits for the end of a job is told of each end there is.
pub(crate) async fn who_waits_is_told_of_any_end(t: Fixture) {
    let run = t.run().await;
    let (done, ended) = tokio::join!(t.finished(run.job.id), t.later(t.end(&run, with(bytes(2)))));
    assert_eq!(done, Some(ended));

    let id = t.add().await;
    let (cancelled, ()) = tokio::join!(t.finished(id), t.later(t.apply(id, CANCEL)));
    assert_eq!(cancelled.unwrap().state, State::Cancelled);

    let id = t.add().await;
    let (gone, ()) = tokio::join!(t.finished(id), t.later(t.apply(id, Action::Delete)));
    assert_eq!(gone, None);

    let id = t.add().await;
    let (gone, _) = tokio::join!(t.finished(id), t.later(t.store.queue(QUEUE, &QueueOp::Purge(10))));
    assert_eq!(gone, None);

    let id = t.add().await;
    let (taken, jobs) = tokio::join!(t.finished(id), t.later(t.take(1)));
    assert_eq!((taken.unwrap().state, jobs.len()), (State::Done, 1));

    let run = t.run_with(|job| job.options.max_attempts = Some(1)).await;
    t.pass(15).await;
    let (dead, batch) = tokio::join!(t.finished(run.job.id), t.later(t.reserve(1)));
    assert_eq!((dead.unwrap().state, batch.reclaimed.len()), (State::Dead, 1));

    let id = t.add_with(|job| job.expires_at = Some(punctual::When::In(secs(1)))).await;
    t.pass(1).await;
    let (expired, _) = tokio::join!(t.finished(id), t.later(t.sweep(10)));
    assert_eq!(expired.unwrap().reason.as_deref(), Some("expired"));
    assert_eq!(t.audit(false).await, []);
}

/// S12: all are told who wait for one job, and who comes when it has ended is told at once.
pub(crate) async fn all_who_wait_are_told(t: Fixture) {
    let run = t.run().await;
    let waits = join_all((0..5).map(|_| t.finished(run.job.id)));
    let (all, ended) = tokio::join!(waits, t.later(t.end(&run, with(bytes(2)))));
    assert_eq!(all, vec![Some(ended.clone()); 5]);
    assert_eq!(t.finished(run.job.id).await, Some(ended));
    assert_eq!(t.finished(t.id(0)).await, None);
}

/// S12: a wait goes on while its job waits and runs again, and it changes nothing of the job.
pub(crate) async fn a_wait_outlasts_retries(t: Fixture) {
    let run = t.run_with(|job| job.group = Some("g".to_owned())).await;
    let other = t.run().await;
    let through = async {
        // Asked behind the wait, which has noted by now that somebody waits.
        let before = t.get(run.job.id).await;
        assert_eq!(before, run.job);
        t.end(&run, retry(secs(0))).await;
        let again = t.reserve_one().await;
        assert_eq!((again.job.id, again.job.attempt), (run.job.id, 2));
        t.end(&other, Verdict::Ack).await;
        t.end(&again, Verdict::Ack).await
    };
    let (done, ended) = tokio::join!(t.finished(run.job.id), t.later(through));
    assert_eq!(done, Some(ended));
    assert_eq!(t.audit(false).await, []);
}

/// S12: a wait is over by the end of its job and by its own, not by what was left of an earlier end or by others who wait.
pub(crate) async fn who_waits_does_not_spin(t: Fixture) {
    let run = t.run().await;
    let id = run.job.id;
    let waits = join_all((0..5).map(|_| t.finished(id)));
    tokio::join!(waits, t.later(t.end(&run, dead())));
    t.apply(id, Action::Retry).await;
    let name = [format!("$end/{:032x}", u128::from_be_bytes(*id.as_bytes()))];
    let begin = Instant::now();
    let (t, name) = (&t, &name);
    let waits = (0..6).map(|n| async move {
        let mut returns = 0;
        while begin.elapsed() < secs(1) {
            t.store.wait(name, Duration::from_millis(150 + 40 * n)).await.unwrap();
            returns += 1;
        }
        returns
    });
    let returns: u32 = join_all(waits).await.into_iter().sum();
    assert!(returns <= 60, "{returns} returns of waits that last 150 ms and more, six at a time");
}

/// S12: a queue that keeps no done jobs tells of their ends all the same.
pub(crate) async fn who_waits_is_told_of_an_end_that_is_not_kept(t: Fixture) {
    t.set(|queue| queue.done = Keep { count: 0, ..queue.done }).await;
    let run = t.run().await;
    let (gone, settled) =
        tokio::join!(t.finished(run.job.id), t.later(t.settle_one(run.lease, Verdict::Ack)));
    assert_eq!((gone, settled), (None, Settled::Settled(State::Done, None)));
}

/// S12: a cancel of a running job notifies the worker that runs it.
pub(crate) async fn a_cancel_rings_for_the_worker(t: Fixture) {
    let mut run = t.run().await;
    let name = [format!("$worker/{WORKER}")];
    for _ in 0..2 {
        let wait = timeout(PATIENCE, t.store.wait(&name, secs(600)));
        let (woken, ()) = tokio::join!(wait, t.later(t.apply(run.job.id, CANCEL)));
        woken.expect("the worker is told").unwrap();
        assert_eq!(t.extend(run.lease).await, LeaseStatus::CancelRequested);
        // It runs once more, and is cancelled once more.
        t.end(&run, Verdict::Release).await;
        t.apply(run.job.id, Action::Retry).await;
        run = t.reserve_one().await;
    }
}
