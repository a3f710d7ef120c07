//! Schedules: their ticks, in a store in memory with a clock that is turned by hand. Across processes that die and clocks that
//! jump they are drilled by `punctual-chaos schedules`.

#![cfg(all(feature = "cron", feature = "derive", feature = "testing"))]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use punctual::{
    Client, Ctx, ErrorKind, Job, JobRecord, NewJob, Outcome, Payload, Timestamp, Unique, When, Worker,
    client::Cancelled,
    job::Filter,
    schedule::{Cron, Misfire, Schedule},
    store::{
        CallId, DocOp, DocReply, Enqueued, Lease, List, Precondition, QueueRequest, QueueSettings, Reserve,
        Settlement, Verdict, memory::MemoryStore,
    },
    testing::{Clock, Fault, FaultyStore, ManualClock, TestQueue},
    worker::{UnknownKinds, WorkReport},
};
use serde::{Deserialize, Serialize};

const MINUTE: Duration = Duration::from_mins(1);
/// When the clock of a `TestQueue` starts, a whole minute.
const START: u64 = 1_767_225_600_000;

#[derive(Clone, Job, Serialize, Deserialize)]
#[job(kind = "report", queue = "reports", backoff = "fixed 10s")]
struct Report {
    of: String,
}

fn report() -> Report {
    Report { of: "sales".to_owned() }
}

fn every_minute() -> Cron {
    Cron::new("* * * * *").unwrap()
}

/// Earlier versions stored expressions that are refused now. They go on, until another expression is set.
#[tokio::test]
async fn an_expression_that_was_stored_goes_on_though_it_is_refused_now() {
    let t = TestQueue::new();
    let handle = t.client.schedule("sales");
    assert!(Cron::new("*/90 * * * *").is_err());
    handle.set(Cron::new("*/45 * * * *").unwrap(), report()).await.unwrap();
    let store = t.client.store();
    let key = "schedule/sales".to_owned();
    let DocReply::Is(Some(doc)) = store.doc(&DocOp::Get { key: key.clone() }).await.unwrap() else {
        panic!()
    };
    let older = String::from_utf8(doc.value).unwrap().replace("*/45", "*/90");
    store
        .doc(&DocOp::Put { key, precondition: Precondition::Always, value: older.clone().into() })
        .await
        .unwrap();

    handle.pause("ana", "moved").await.unwrap();
    let named = handle.resume().await.unwrap();
    assert_eq!(named.schedule.cron.expression(), Some("*/90 * * * *"));
    assert_eq!(handle.waiting().await.unwrap().unwrap().run_at, minute(60));
    handle.put(named.schedule).await.unwrap();
    let other: Schedule = serde_json::from_str(&older.replace("*/90", "*/91")).unwrap();
    let refused = handle.put(other).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.hint().unwrap().contains("@every 91m"), "{refused:?}");
}

/// So many minutes after the start.
fn minute(n: u64) -> Timestamp {
    Timestamp::saturating_from_ms(START + n * 60_000)
}

/// A store, and the ticks that ran in it.
struct Rig {
    t: TestQueue,
    ran: Arc<Mutex<Vec<Timestamp>>>,
}

impl Rig {
    fn new() -> Self {
        Self { t: TestQueue::new(), ran: Arc::default() }
    }

    /// A rig with one schedule that ticks every minute.
    async fn ticking(misfire: Misfire) -> Self {
        let rig = Self::new();
        let cron = every_minute().on_misfire(misfire).unwrap();
        rig.t.client.schedule("sales").set(cron, report()).await.unwrap();
        rig
    }

    /// Turns the clock on by so many minutes, then runs what is due; answers which ticks ran, as minutes after the start.
    async fn pass(&self, minutes: u32) -> Vec<u64> {
        self.t.clock.advance(MINUTE * minutes);
        self.drain().await;
        let ran = std::mem::take(&mut *self.ran.lock().unwrap());
        ran.iter().map(|at| (at.as_ms() - START) / 60_000).collect()
    }

    async fn drain(&self) -> WorkReport {
        self.drain_by(&self.t.client).await
    }

    async fn drain_by(&self, client: &Client) -> WorkReport {
        let ran = Arc::clone(&self.ran);
        let note = move |job: Report, ctx: Ctx| {
            let ran = Arc::clone(&ran);
            async move {
                assert_eq!(job.of, "sales");
                ran.lock().unwrap().push(ctx.scheduled_for().unwrap());
            }
        };
        self.t.drain(Worker::new(client).queue("reports").handle(note)).await.unwrap()
    }

    async fn jobs(&self, filter: &str) -> Vec<JobRecord> {
        let list = List { filter: Filter::parse(filter).unwrap(), after: None, limit: 1_000 };
        self.t.client.list(&list).await.unwrap().jobs
    }

    /// When the one tick that waits is due.
    async fn waits(&self) -> Timestamp {
        let waiting = self.jobs("state:waiting").await;
        assert_eq!(waiting.len(), 1, "one tick waits: {waiting:?}");
        waiting[0].run_at
    }

    /// Another worker reserves the tick that is due, and holds it for a while.
    async fn reserve(&self) -> Lease {
        let reserve = Reserve {
            call: CallId { instance: fastrand::u64(..), number: 1 },
            worker: "another".to_owned(),
            queues: vec![QueueRequest { queue: "reports".to_owned(), share: 1, at_most: 1 }],
            n: 1,
            lease: None,
            company: false,
        };
        self.t.client.store().reserve(&reserve).await.unwrap().jobs[0].lease
    }

    async fn reasons(&self) -> Vec<String> {
        self.jobs("state:cancelled").await.into_iter().filter_map(|job| job.reason).collect()
    }
}

#[tokio::test]
async fn each_tick_runs_once_and_its_successor_waits() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    assert_eq!(rig.waits().await, minute(1));
    assert_eq!(rig.pass(0).await, [0; 0]);
    for n in 1..5 {
        assert_eq!(rig.pass(1).await, [n]);
        assert_eq!(rig.waits().await, minute(n + 1));
    }
}

#[tokio::test]
async fn a_tick_that_fails_is_retried_beside_its_successors() {
    let rig = Rig::ticking(Misfire::Skip).await;
    let failing = async |_: Report, ctx: Ctx| match ctx.attempt() {
        1 => Outcome::retry("no printer"),
        _ => Outcome::Done,
    };
    let drain = async || rig.t.drain(rig.t.worker().queue("reports").handle(failing)).await.unwrap();
    rig.t.clock.advance(MINUTE);
    assert_eq!(drain().await.retried, 1);
    // Long past its successor, which is missed, it comes again: it is none that was missed.
    rig.t.clock.advance(MINUTE * 3);
    let report = drain().await;
    assert_eq!((report.done, report.cancelled), (1, 1));
    assert_eq!(rig.waits().await, minute(5));
}

#[tokio::test]
async fn of_missed_ticks_one_runs() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    assert_eq!(rig.pass(10).await, [1]);
    assert_eq!(rig.waits().await, minute(11));
    assert_eq!(rig.pass(1).await, [11]);
}

#[tokio::test]
async fn missed_ticks_are_skipped() {
    let rig = Rig::ticking(Misfire::Skip).await;
    assert_eq!(rig.pass(10).await, [0; 0]);
    assert_eq!((rig.waits().await, rig.reasons().await), (minute(11), vec!["missed".to_owned()]));
    // Late is not missed as long as the next one is not due.
    rig.t.clock.advance(Duration::from_millis(119_999 - 60_000));
    assert_eq!(rig.pass(1).await, [11]);
}

#[tokio::test]
async fn the_last_of_missed_ticks_run_in_their_order() {
    let rig = Rig::ticking(Misfire::RunAll { at_most: 3 }).await;
    assert_eq!(rig.pass(10).await, [8, 9, 10]);
    assert_eq!(rig.pass(3).await, [11, 12, 13]);
    assert_eq!(rig.pass(2).await, [14, 15]);
    assert_eq!((rig.waits().await, rig.reasons().await), (minute(16), vec!["missed".to_owned()]));
}

#[tokio::test]
async fn a_tick_that_comes_back_enqueues_none_twice() {
    let rig = Rig::ticking(Misfire::RunAll { at_most: 1_000 }).await;
    let ran = Arc::clone(&rig.ran);
    let failing_first = move |_: Report, ctx: Ctx| {
        let (at, ran) = (ctx.scheduled_for().unwrap(), Arc::clone(&ran));
        async move {
            if at == minute(1) && ctx.attempt() == 1 {
                return Outcome::Retry { after: Some(MINUTE * 3 / 2), error: "no paper".to_owned() };
            }
            ran.lock().unwrap().push(at);
            Outcome::Done
        }
    };
    for _ in 0..6 {
        rig.t.clock.advance(MINUTE / 2);
        rig.t.drain(rig.t.worker().queue("reports").handle(failing_first.clone())).await.unwrap();
    }
    assert_eq!(*rig.ran.lock().unwrap(), [minute(2), minute(1), minute(3)]);
    assert_eq!(rig.waits().await, minute(4));
}

/// It starts while the schedule is being changed.
#[tokio::test]
async fn a_tick_that_starts_finds_out_that_its_schedule_was_changed() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    rig.t.clock.advance(MINUTE);
    let lease = rig.reserve().await;
    let changed = Cron::every(MINUTE * 7).unwrap();
    rig.t.client.schedule("sales").set(changed, report()).await.unwrap();
    rig.t.client.store().settle(&[Settlement { lease, verdict: Verdict::Release }], None).await.unwrap();
    assert_eq!(
        (rig.pass(0).await, rig.reasons().await),
        (vec![], vec!["its schedule was changed".to_owned()])
    );
    assert_eq!(rig.jobs("state:waiting").await.len(), 1);
}

/// A worker that starts while another one has just reserved a tick finds that none waits.
#[tokio::test]
async fn a_tick_enqueued_too_early_makes_room() {
    let rig = Rig::ticking(Misfire::RunAll { at_most: 1_000 }).await;
    rig.t.clock.advance(MINUTE * 3);
    let (store, lease) = (rig.t.client.store(), rig.reserve().await);
    assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 1);
    assert_eq!(rig.waits().await, minute(4));
    store.settle(&[Settlement { lease, verdict: Verdict::Release }], None).await.unwrap();
    assert_eq!(rig.pass(0).await, [1, 2, 3]);
    assert_eq!(rig.waits().await, minute(4));
    assert_eq!((rig.pass(1).await, rig.waits().await), (vec![4], minute(5)));
}

/// The caller was slow, and others went on with the schedule meanwhile. If it were cut off between a cancel and its own tick, theirs
/// would be missing.
#[tokio::test(start_paused = true)]
async fn a_tick_that_has_passed_on_its_way_takes_no_room() {
    let rig = Rig::new();
    let slow = FaultyStore::new(Arc::clone(rig.t.client.store()), |verb| match verb {
        "enqueue" => Fault::Late(Duration::from_secs(10)),
        _ => Fault::Pass,
    });
    let slow = Client::new(Arc::new(slow));
    let cron = every_minute().on_misfire(Misfire::RunAll { at_most: 1_000 }).unwrap();
    let others = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        rig.t.clock.advance(MINUTE * 3 / 2);
        assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 1);
        assert_eq!(rig.pass(1).await, [2]);
    };
    let schedule = slow.schedule("sales");
    let (set, ()) = tokio::join!(schedule.set(cron, report()), others);
    set.unwrap();
    assert_eq!(rig.reasons().await, [""; 0]);
    assert_eq!(rig.waits().await, minute(3));
}

/// A tick comes back whose worker took long, and makes the tick that waits make room, behind one that runs or is to be retried.
#[tokio::test]
async fn a_tick_that_comes_back_passes_over_one_that_has_started() {
    let later = || When::In(MINUTE * 30);
    for (misfire, verdict, expected) in [
        (Misfire::RunAll { at_most: 1_000 }, None, vec![1, 2, 3]),
        (
            Misfire::RunAll { at_most: 1_000 },
            Some(Verdict::Retry { at: later(), error: "no paper".to_owned() }),
            vec![1, 2, 3],
        ),
        (Misfire::RunOnce, None, vec![1]),
    ] {
        let rig = Rig::ticking(misfire).await;
        rig.t.clock.advance(MINUTE * 3);
        let (store, first) = (rig.t.client.store(), rig.reserve().await);
        assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 1);
        rig.t.clock.advance(MINUTE);
        let fourth = rig.reserve().await;
        assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 1);
        assert_eq!(rig.waits().await, minute(5));
        let retried = u64::from(verdict.is_some());
        if let Some(verdict) = verdict {
            store.settle(&[Settlement { lease: fourth, verdict }], None).await.unwrap();
        }
        store.settle(&[Settlement { lease: first, verdict: Verdict::Release }], None).await.unwrap();
        assert_eq!(rig.pass(0).await, expected);
        assert_eq!(rig.jobs("state:waiting").await.len() as u64, 1 + retried, "{misfire:?}");
        if retried == 0 {
            store.settle(&[Settlement { lease: fourth, verdict: Verdict::Ack }], None).await.unwrap();
        }
        assert_eq!(rig.pass(1).await, [5], "{misfire:?}");
    }
}

/// The answer of an enqueue is lost, and the tick that it met starts before the repetition. That answer says that the job is gone,
/// as it does for a tick that has ended.
#[tokio::test]
async fn a_tick_is_not_taken_for_one_that_ended_when_an_answer_is_lost() {
    let rig = Arc::new(Rig::ticking(Misfire::RunAll { at_most: 1_000 }).await);
    rig.t.clock.advance(MINUTE * 3);
    let (store, first) = (rig.t.client.store(), rig.reserve().await);
    assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 1);
    store.settle(&[Settlement { lease: first, verdict: Verdict::Release }], None).await.unwrap();
    let (meanwhile, mut is_reserved, mut enqueues) = (Arc::clone(&rig), false, 0);
    let faulty = FaultyStore::new(Arc::clone(store), move |verb| {
        is_reserved |= verb == "reserve";
        enqueues += u32::from(is_reserved && verb == "enqueue");
        match (verb, enqueues) {
            // The first one met the fourth tick, which has made room.
            ("enqueue", 2) => {
                assert_eq!(meanwhile.t.client.enqueue_ticks().now_or_never().unwrap().unwrap(), 1);
                Fault::After
            }
            ("enqueue", 3) => {
                meanwhile.t.clock.advance(MINUTE);
                meanwhile.reserve().now_or_never().unwrap();
                Fault::Pass
            }
            _ => Fault::Pass,
        }
    });
    rig.drain_by(&Client::new(Arc::new(faulty))).await;
    assert_eq!(*rig.ran.lock().unwrap(), [minute(1), minute(2), minute(3)]);
}

/// The answer of an enqueue is lost, and its tick starts minutes later, before the repetition. The schedule goes on with that tick.
#[tokio::test]
async fn a_tick_that_started_late_stands_for_those_that_were_missed_meanwhile() {
    for misfire in [Misfire::RunOnce, Misfire::Skip] {
        let rig = Arc::new(Rig::ticking(misfire).await);
        // The lease outlives what happens meanwhile.
        let lease = |settings: &mut QueueSettings| settings.defaults.lease = Some(MINUTE * 9);
        rig.t.client.queue("reports").update(lease).await.unwrap();
        rig.t.clock.advance(MINUTE);
        let (meanwhile, mut is_reserved, mut enqueues) = (Arc::clone(&rig), false, 0);
        let faulty = FaultyStore::new(Arc::clone(rig.t.client.store()), move |verb| {
            is_reserved |= verb == "reserve";
            enqueues += u32::from(is_reserved && verb == "enqueue");
            match (verb, enqueues) {
                ("enqueue", 1) => Fault::After,
                ("enqueue", 2) => {
                    meanwhile.t.clock.advance(MINUTE * 3);
                    meanwhile.reserve().now_or_never().unwrap();
                    Fault::Pass
                }
                _ => Fault::Pass,
            }
        });
        rig.drain_by(&Client::new(Arc::new(faulty))).await;
        assert_eq!(*rig.ran.lock().unwrap(), [minute(1)], "{misfire:?}");
        // The repetition says that the tick is new. Its worker is gone: it comes back, and its successor waits.
        rig.t.advance(MINUTE * 9);
        rig.drain().await;
        assert_eq!(rig.jobs("state:waiting").await.len(), 1, "{misfire:?}");
    }
}

#[tokio::test]
async fn a_change_holds_for_the_tick_that_waits() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    let schedule = rig.t.client.schedule("sales");
    let first = schedule.get().await.unwrap().unwrap();
    // Set as it is, by every worker that starts, it stays what it is.
    schedule.set(every_minute(), report()).await.unwrap();
    assert_eq!(schedule.get().await.unwrap().unwrap(), first);
    assert_eq!((rig.waits().await, rig.reasons().await), (minute(1), vec![]));
    // Under another queue, too, where the tick of before is none any more.
    let hourly = Cron::every(Duration::from_hours(1)).unwrap();
    let changed = schedule
        .set_with(hourly, &report(), |job| {
            job.queue("other");
        })
        .await
        .unwrap();
    assert!(first.generation < changed.generation);
    let waiting = rig.jobs("state:waiting").await;
    assert_eq!((waiting.len(), waiting[0].queue.as_str(), waiting[0].run_at), (1, "other", minute(60)));
    assert_eq!(rig.reasons().await, ["its schedule was changed"]);
    assert_eq!(rig.pass(30).await, [0; 0]);
}

#[tokio::test]
async fn a_tick_of_before_a_change_does_not_run() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    // A change whose maker died behind its first step: the tick of before still waits.
    let schedule = rig.t.client.schedule("sales");
    let was = rig.jobs("state:waiting").await.remove(0);
    schedule.remove().await.unwrap();
    schedule.set(Cron::every(MINUTE).unwrap(), report()).await.unwrap();
    let now = rig.jobs("state:waiting").await.remove(0);
    rig.t.client.cancel(now.id).await.unwrap();
    rig.t.client.retry(was.id).await.unwrap();
    assert_eq!(rig.pass(0).await, [0; 0]);
    assert_eq!(rig.t.client.get(was.id).await.unwrap().unwrap().reason.unwrap(), "its schedule was changed");
    // The new one's first tick was called off by hand.
    assert_eq!(rig.waits().await, minute(2));
    // One of a schedule that is not there any more.
    schedule.remove().await.unwrap();
    rig.t.client.retry(was.id).await.unwrap();
    assert_eq!(rig.pass(0).await, [0; 0]);
    assert_eq!(rig.t.client.get(was.id).await.unwrap().unwrap().reason.unwrap(), "its schedule was removed");
}

#[tokio::test]
async fn a_paused_schedule_enqueues_nothing() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    let schedule = rig.t.client.schedule("sales");
    schedule.pause("ana", "holidays").await.unwrap();
    assert_eq!(rig.reasons().await, ["its schedule was changed"]);
    // Setting it neither ends the pause nor enqueues a tick; nor does a worker.
    let set = schedule.set(Cron::every(MINUTE).unwrap(), report()).await.unwrap();
    assert_eq!(set.schedule.paused.as_ref().unwrap().by, "ana");
    assert_eq!((rig.pass(9).await, rig.jobs("state:waiting").await), (vec![], vec![]));
    assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 0);
    schedule.resume().await.unwrap();
    assert_eq!((rig.waits().await, rig.pass(1).await), (minute(10), vec![10]));
}

#[tokio::test]
async fn a_removed_schedule_is_gone() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    let schedule = rig.t.client.schedule("sales");
    assert!(schedule.remove().await.unwrap());
    assert!(!schedule.remove().await.unwrap());
    assert_eq!((schedule.get().await.unwrap(), rig.pass(5).await), (None, vec![]));
    assert_eq!(rig.reasons().await, ["its schedule was removed"]);
    for answer in
        [schedule.pause("a", "b").await.err(), schedule.resume().await.err(), schedule.fire().await.err()]
    {
        assert_eq!(answer.unwrap().kind(), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn a_change_is_made_only_to_the_generation_that_was_seen() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    let of = |generation| rig.t.client.schedule("sales").if_generation(generation);
    let first = of(0).get().await.unwrap().unwrap();
    let second = of(first.generation).pause("ana", "").await.unwrap();
    for answer in [
        of(first.generation).put(first.schedule.clone()).await.err(),
        of(first.generation).pause("bo", "").await.err(),
        of(first.generation).resume().await.err(),
        of(first.generation).remove().await.err(),
        rig.t.client.schedule("none").if_generation(first.generation).put(first.schedule.clone()).await.err(),
        rig.t.client.schedule("none").if_generation(first.generation).remove().await.err(),
    ] {
        assert_eq!(answer.unwrap().kind(), ErrorKind::Conflict);
    }
    assert_eq!(of(0).get().await.unwrap(), Some(second.clone()));
    assert_eq!(rig.t.client.schedule("none").get().await.unwrap(), None);
    assert!(of(second.generation).remove().await.unwrap());
}

#[tokio::test]
async fn a_schedule_is_fired_beside_its_ticks() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    let schedule = rig.t.client.schedule("sales");
    assert!(matches!(schedule.fire().await.unwrap(), Enqueued::Inserted { .. }));
    assert_eq!((rig.pass(0).await, rig.waits().await), (vec![0], minute(1)));
    schedule.pause("ana", "").await.unwrap();
    schedule.fire().await.unwrap();
    assert_eq!(rig.pass(0).await, [0]);
}

#[tokio::test]
async fn a_tick_called_off_by_hand_is_left_out() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    let waiting = rig.t.client.schedule("sales").waiting().await.unwrap().unwrap();
    assert_eq!(rig.t.client.cancel(waiting.id).await.unwrap(), Cancelled::Done);
    assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 1);
    assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 0);
    assert_eq!((rig.waits().await, rig.pass(2).await), (minute(2), vec![2]));
    // One that is deleted or purged with its queue, too; workers look for it when they start.
    rig.t.client.queue("reports").purge(|_| ()).await.unwrap();
    assert_eq!((rig.pass(0).await, rig.waits().await), (vec![], minute(4)));
}

#[tokio::test]
async fn a_worker_sets_its_schedules() {
    let t = TestQueue::new();
    let worker = || {
        t.worker()
            .queue("reports")
            .handle(async |_: Report, _: Ctx| ())
            .cron("a", every_minute(), report())
            .cron("b", Cron::every(MINUTE).unwrap(), report())
    };
    assert_eq!(t.drain(worker()).await.unwrap().done, 0);
    t.advance(MINUTE);
    assert_eq!(t.drain(worker()).await.unwrap().done, 2);
    let page = t.client.schedules(None).await.unwrap();
    assert_eq!(page.schedules.into_iter().map(|named| named.name).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(t.client.schedules(Some("a")).await.unwrap().schedules.len(), 1);
    let wrong = t.worker().handle(async |_: Report, _: Ctx| ()).cron("", every_minute(), report());
    assert_eq!(t.drain(wrong).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_tick_has_what_its_schedule_chose() {
    let rig = Rig::new();
    let choose = |job: &mut punctual::client::Spec| {
        job.group("acme").concurrency_key("printer").tag("vip").header("trace", "1").max_attempts(7);
    };
    rig.t.client.schedule("sales").set_with(every_minute(), &report(), choose).await.unwrap();
    let job = rig.jobs("").await.remove(0);
    assert_eq!((job.kind.as_str(), job.queue.as_str(), job.max_attempts), ("report", "reports", 7));
    assert_eq!((job.group.as_deref(), job.concurrency.unwrap().key.as_str()), (Some("acme"), "printer"));
    assert_eq!((job.tags, job.headers["trace"].as_str()), (vec!["vip".to_owned()], "1"));
    assert_eq!(
        (job.headers["schedule"].as_str(), job.headers["scheduled_for"].as_str()),
        ("sales", "1767225660000")
    );
    assert_eq!(rig.pass(2).await, [1]);
}

#[tokio::test]
async fn what_can_be_no_schedule_is_refused() {
    let t = TestQueue::new();
    let job = |change: fn(&mut NewJob)| {
        let mut job = NewJob::new(t.client.make_id(), "report", "reports", Payload::json("1"));
        change(&mut job);
        Schedule::new(every_minute(), job).map(|_| ()).map_err(|e| e.kind())
    };
    assert_eq!(job(|_| ()), Ok(()));
    let changes: [fn(&mut NewJob); 7] = [
        |job| drop(job.headers.insert("schedule".to_owned(), "sales".to_owned())),
        |job| job.run_at = MINUTE.into(),
        |job| job.expires_at = Some(MINUTE.into()),
        |job| job.unique = Some(Unique::key("k")),
        |job| job.payload = Payload::json(vec![0xff]),
        |job| job.kind = String::new(),
        |job| job.queue = "$topics".to_owned(),
    ];
    for change in changes {
        assert_eq!(job(change), Err(ErrorKind::Invalid));
    }
    let large = NewJob::new(t.client.make_id(), "report", "reports", Payload::json(vec![b'1'; 65_536]));
    let large = Schedule::new(every_minute(), large).unwrap();
    assert_eq!(t.client.schedule("large").put(large).await.unwrap_err().kind(), ErrorKind::TooLarge);
    for name in ["", "a\nb", &"n".repeat(201)] {
        let set = t.client.schedule(name).set(every_minute(), report()).await;
        assert_eq!(set.unwrap_err().kind(), ErrorKind::Invalid, "{name:?}");
    }
}

#[tokio::test]
async fn a_change_keeps_a_tick_that_is_due() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    rig.t.clock.advance(MINUTE * 3);
    let changed = every_minute().on_misfire(Misfire::RunAll { at_most: 9 }).unwrap();
    rig.t.client.schedule("sales").set(changed, report()).await.unwrap();
    assert_eq!(rig.pass(0).await, [1, 2, 3]);
    assert_eq!(rig.waits().await, minute(4));
}

#[tokio::test]
async fn an_ordinary_job_with_such_headers_is_no_tick() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    let tick = rig.jobs("state:waiting").await.remove(0);
    let mut copy = NewJob::new(rig.t.client.make_id(), "report", "reports", tick.payload.clone());
    copy.headers = tick.headers.clone();
    copy.headers.insert("scheduled_for".to_owned(), minute(500_000).as_ms().to_string());
    let mut other = copy.clone();
    (other.id, other.unique) = (rig.t.client.make_id(), Some(Unique::key("mine").until_start()));
    other.headers.insert("schedule".to_owned(), "\n".to_owned());
    rig.t.client.push(vec![copy, other]).await.unwrap();
    assert_eq!(rig.pass(0).await, [500_000, 500_000]);
    assert_eq!(rig.waits().await, minute(1));
}

/// By then the ids of those behind it are forgotten.
#[tokio::test]
async fn a_tick_that_comes_back_after_a_day_runs_no_other_again() {
    const HOUR: Duration = Duration::from_hours(1);
    let t = TestQueue::new();
    let hourly = Cron::every(HOUR).unwrap().on_misfire(Misfire::RunAll { at_most: 1_000 }).unwrap();
    t.client.schedule("sales").set(hourly, report()).await.unwrap();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let failing_first = {
        let ran = Arc::clone(&ran);
        move |_: Report, ctx: Ctx| {
            let (at, ran) = (ctx.scheduled_for().unwrap(), Arc::clone(&ran));
            async move {
                if at == minute(60) && ctx.attempt() == 1 {
                    return Outcome::Retry { after: Some(HOUR * 26), error: "no paper".to_owned() };
                }
                ran.lock().unwrap().push((at.as_ms() - START) / 3_600_000);
                Outcome::Done
            }
        }
    };
    for _ in 0..28 {
        t.advance(HOUR);
        t.drain(t.worker().queue("reports").handle(failing_first.clone())).await.unwrap();
        while t.client.store().sweep(1_000).await.unwrap().more {}
    }
    let mut ran = std::mem::take(&mut *ran.lock().unwrap());
    ran.sort_unstable();
    assert_eq!(ran, (1..=28).collect::<Vec<_>>());
}

/// Its successor may not have been enqueued when it took too long.
#[tokio::test]
async fn a_tick_that_timed_out_and_comes_back_after_a_day_runs_no_other_again() {
    const HOUR: Duration = Duration::from_hours(1);
    let rig = Rig::new();
    let hourly = Cron::every(HOUR).unwrap().on_misfire(Misfire::RunAll { at_most: 1_000 }).unwrap();
    rig.t.client.schedule("sales").set(hourly, report()).await.unwrap();
    for hour in 1..=28 {
        rig.t.clock.advance(HOUR);
        if hour == 1 {
            let (lease, at) = (rig.reserve().await, When::In(HOUR * 26));
            let verdict = Verdict::Retry { at, error: "timeout after 5m".to_owned() };
            rig.t.client.store().settle(&[Settlement { lease, verdict }], None).await.unwrap();
        }
        rig.drain().await;
        while rig.t.client.store().sweep(1_000).await.unwrap().more {}
    }
    let mut ran = std::mem::take(&mut *rig.ran.lock().unwrap());
    ran.sort_unstable();
    assert_eq!(ran, (1..=28).map(|hour| minute(60 * hour)).collect::<Vec<_>>());
}

/// Whatever two who set the same change do in between, the next tick waits.
#[tokio::test(start_paused = true)]
async fn changes_at_the_same_time_leave_the_next_tick() {
    for seed in 0..100 {
        let clock = ManualClock::new(minute(0));
        let turned = clock.clone();
        let memory = Arc::new(MemoryStore::new(Clock::Manual(clock)));
        let mut random = fastrand::Rng::with_seed(seed);
        let slow = FaultyStore::new(memory, move |_| Fault::Delay(Duration::from_millis(random.u64(..9))));
        let client = Client::new(Arc::new(slow));
        let set = async |misfire| {
            let cron = every_minute().on_misfire(misfire).unwrap();
            client.schedule("sales").set(cron, report()).await.unwrap()
        };
        set(Misfire::Skip).await;
        let tick = async || {
            let waiting = client.schedule("sales").waiting().await.unwrap().expect("a tick waits");
            (waiting.headers["scheduled_for"].clone(), waiting.headers["schedule_generation"].clone())
        };
        let first = minute(1).as_ms().to_string();
        tokio::join!(set(Misfire::RunOnce), set(Misfire::RunOnce), client.enqueue_ticks()).2.unwrap();
        assert_eq!(tick().await.0, first, "seed {seed}");
        // Of different ones the last holds; and a tick that is due by then stays so.
        turned.advance(MINUTE * 3);
        tokio::join!(set(Misfire::Skip), set(Misfire::RunAll { at_most: 7 }), client.enqueue_ticks())
            .2
            .unwrap();
        let is = client.schedule("sales").get().await.unwrap().unwrap();
        assert_eq!(tick().await, (first, is.generation.to_string()), "seed {seed}");
    }
}

#[tokio::test]
async fn a_queue_without_room_for_the_next_tick_runs_this_one() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    let settings = QueueSettings { max_jobs: Some(1), ..QueueSettings::default() };
    rig.t.client.queue("reports").set(settings).await.unwrap();
    assert_eq!((rig.pass(1).await, rig.jobs("state:waiting").await), (vec![1], vec![]));
    assert_eq!((rig.pass(1).await, rig.waits().await), (vec![], minute(3)));
}

#[tokio::test]
async fn one_schedule_that_can_not_be_read_holds_up_no_other() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    let put = |value: &[u8]| DocOp::Put {
        key: "schedule/broken".to_owned(),
        precondition: Precondition::Always,
        value: value.to_vec(),
    };
    rig.t.client.store().doc(&put(b"{\"later\":1}")).await.unwrap();
    let waiting = rig.t.client.schedule("sales").waiting().await.unwrap().unwrap();
    rig.t.client.cancel(waiting.id).await.unwrap();
    assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 1);
    assert_eq!(rig.t.client.schedules(None).await.unwrap().unreadable, ["broken"]);
    let broken = rig.t.client.schedule("broken");
    assert_eq!(broken.get().await.unwrap_err().kind(), ErrorKind::Corrupt);
    broken.set(every_minute(), report()).await.unwrap();
    assert!(broken.get().await.unwrap().is_some());
    rig.t.client.store().doc(&put(b"1")).await.unwrap();
    assert!(broken.remove().await.unwrap());
}

/// A store that fails in passing costs a tick time, not its run; and one that was missed stays one.
#[tokio::test]
async fn a_tick_waits_for_a_store_that_is_away() {
    for (misfire, minutes, done, cancelled) in
        [(Misfire::RunOnce, 1, 1, 0), (Misfire::Skip, 1, 1, 0), (Misfire::Skip, 2, 0, 1)]
    {
        let t = TestQueue::new();
        // How many looks at a schedule fail, from the first reserve on.
        let (mut is_reserved, mut fails) = (false, 2);
        let faulty = FaultyStore::new(Arc::clone(t.client.store()), move |verb| {
            is_reserved |= verb == "reserve";
            if verb != "doc" || !is_reserved || fails == 0 {
                return Fault::Pass;
            }
            fails -= 1;
            Fault::Before
        });
        let client = Client::new(Arc::new(faulty));
        let cron = every_minute().on_misfire(misfire).unwrap();
        client.schedule("sales").set(cron, report()).await.unwrap();
        t.advance(MINUTE * minutes);
        let mut sum = (0, 0, 0);
        for _ in 0..4 {
            let worker = Worker::new(&client).queue("reports").handle(async |_: Report, _: Ctx| ());
            if let Ok(report) = t.drain(worker).await {
                sum = (sum.0 + report.done, sum.1 + report.cancelled, sum.2 + report.snoozed);
            }
            t.advance(Duration::from_secs(5));
        }
        assert_eq!((sum.0, sum.1), (done, cancelled), "{misfire:?} {minutes}");
        assert!(0 < sum.2);
    }
}

/// A change that was made is not reported as one that was not, when its tick cannot follow.
#[tokio::test]
async fn a_change_whose_tick_cannot_follow_may_have_been_made() {
    let (t, is_away) = (TestQueue::new(), Arc::new(AtomicBool::new(false)));
    let away = Arc::clone(&is_away);
    let faulty = FaultyStore::new(Arc::clone(t.client.store()), move |verb| match verb {
        "holder" if away.load(Ordering::SeqCst) => Fault::Before,
        _ => Fault::Pass,
    });
    let handle = Client::new(Arc::new(faulty)).schedule("sales");
    handle.set(every_minute(), report()).await.unwrap();
    is_away.store(true, Ordering::SeqCst);
    let error = handle.pause("ana", "moved").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}");
    assert!(handle.get().await.unwrap().unwrap().schedule.paused.is_some());
    let error = handle.remove().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}");
    assert!(handle.get().await.unwrap().is_none());
}

/// Ticks that fail for hours do not each look for all those behind them.
#[tokio::test]
async fn ticks_that_come_back_after_a_failure_take_a_few_calls_each() {
    const FAILED: u64 = 60;
    let clock = ManualClock::new(minute(0));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let counting = FaultyStore::new(Arc::new(MemoryStore::new(Clock::Manual(clock.clone()))), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Fault::Pass
    });
    let client = Client::new(Arc::new(counting));
    let all = every_minute().on_misfire(Misfire::RunAll { at_most: 1_000 }).unwrap();
    client.schedule("sales").set(all, report()).await.unwrap();
    let (t, ran) = (TestQueue::new(), Arc::new(Mutex::new(Vec::new())));
    let failing_first = {
        let ran = Arc::clone(&ran);
        move |_: Report, ctx: Ctx| {
            let (at, ran) = (ctx.scheduled_for().unwrap(), Arc::clone(&ran));
            async move {
                if at <= minute(FAILED) && ctx.attempt() == 1 {
                    // Between two ticks, when the next one waits.
                    return Outcome::Retry { after: Some(MINUTE * 121 / 2), error: "no paper".to_owned() };
                }
                ran.lock().unwrap().push((at.as_ms() - START) / 60_000);
                Outcome::Done
            }
        }
    };
    for n in 1..=4 * FAILED + 1 {
        calls.store(0, Ordering::Relaxed);
        clock.advance(MINUTE / 2);
        t.drain(Worker::new(&client).queue("reports").handle(failing_first.clone())).await.unwrap();
        let made = calls.load(Ordering::Relaxed);
        assert!(made <= 20, "{made} calls in half-minute {n}");
    }
    let mut ran = std::mem::take(&mut *ran.lock().unwrap());
    ran.sort_unstable();
    assert_eq!(ran, (1..=2 * FAILED).collect::<Vec<_>>());
}

/// Not even where more of its successors ran than are tried.
#[tokio::test]
async fn a_tick_that_comes_back_passes_over_all_that_ran() {
    let rig = Rig::ticking(Misfire::RunAll { at_most: 1_000 }).await;
    let ran: Vec<u64> = (1..=40).collect();
    assert_eq!(rig.pass(40).await, ran);
    let first = rig.jobs("state:done").await.into_iter().min_by_key(|job| job.id).unwrap();
    rig.t.client.retry(first.id).await.unwrap();
    assert_eq!(rig.pass(0).await.len(), 1);
    assert_eq!(rig.waits().await, minute(41));
}

/// The tick that was enqueued during the jump waits for a time that is far away.
#[tokio::test]
async fn a_clock_that_jumped_forward_and_came_back_silences_no_schedule() {
    for is_set_again in [false, true] {
        let rig = Rig::ticking(Misfire::RunOnce).await;
        assert_eq!(rig.pass(366 * 24 * 60).await, [1]);
        rig.t.clock.set(minute(0).after(Duration::from_secs(90)));
        if is_set_again {
            let schedule = rig.t.client.schedule("sales");
            schedule.set(every_minute(), report()).await.unwrap();
        } else {
            assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 1);
        }
        assert_eq!(rig.waits().await, minute(2));
        assert_eq!(rig.t.client.enqueue_ticks().await.unwrap(), 0);
        assert_eq!((rig.pass(1).await, rig.pass(1).await), (vec![2], vec![3]));
        assert_eq!(rig.waits().await, minute(4));
    }
}

/// What a clock ran ahead of, and did, it does not do again.
#[tokio::test]
async fn a_clock_that_goes_back_repeats_no_tick() {
    let rig = Rig::ticking(Misfire::RunOnce).await;
    for n in 1..=5 {
        assert_eq!(rig.pass(1).await, [n]);
    }
    rig.t.clock.set(minute(2));
    assert_eq!((rig.pass(0).await, rig.waits().await), (vec![], minute(6)));
    assert_eq!((rig.pass(3).await, rig.pass(1).await), (vec![], vec![6]));
}

#[derive(Clone, Job, Serialize, Deserialize)]
#[job(kind = "other", queue = "reports")]
struct Other;

/// They wait for the deploy that brings their handler: as many as the rule for missed ticks says run then.
#[tokio::test]
async fn ticks_that_no_worker_knows_are_judged_by_the_rule_for_missed_ones() {
    for unknown in [UnknownKinds::Hold, UnknownKinds::Retry] {
        for (misfire, waiting, ran) in [
            (Misfire::RunOnce, 2, vec![31]),
            (Misfire::Skip, 2, vec![31]),
            (Misfire::RunAll { at_most: 3 }, 4, vec![29, 30, 31]),
        ] {
            let rig = Rig::ticking(misfire).await;
            for _ in 0..30 {
                rig.t.clock.advance(MINUTE);
                let old = rig.t.worker().queue("reports").unknown_kinds(unknown);
                rig.t.drain(old.handle(async |_: Other, _: Ctx| ())).await.unwrap();
            }
            let waits = rig.jobs("state:waiting").await.len();
            assert_eq!(
                waits, waiting,
                "{unknown:?} {misfire:?}: ticks that wait for the deploy, and the next one"
            );
            let mut after = rig.pass(1).await;
            after.sort_unstable();
            assert_eq!(after, ran, "{unknown:?} {misfire:?}");
            assert_eq!(rig.waits().await, minute(32));
        }
    }
}

/// Services that start together set the same schedules, each its own version of them.
#[tokio::test(start_paused = true)]
async fn a_hundred_set_one_schedule_at_the_same_time() {
    let memory = Arc::new(MemoryStore::new(Clock::Manual(ManualClock::new(minute(0)))));
    let mut random = fastrand::Rng::with_seed(7);
    let slow = FaultyStore::new(memory, move |_| Fault::Delay(Duration::from_millis(random.u64(..9))));
    let client = Client::new(Arc::new(slow));
    let set = async |n: u32| {
        let cron = every_minute().on_misfire(Misfire::RunAll { at_most: n }).unwrap();
        client.schedule("sales").set(cron, report()).await
    };
    let answers = futures_util::future::join_all((1..=100).map(set)).await;
    let failed: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} of 100 failed, the first with {:?}", failed.len(), failed[0]);
    let is = client.schedule("sales").get().await.unwrap().unwrap();
    let waiting = client.schedule("sales").waiting().await.unwrap().expect("a tick waits");
    assert_eq!(waiting.headers["schedule_generation"], is.generation.to_string());
}

/// A look at all of them is a few pages and a few batches, be there one schedule or thousands.
#[tokio::test]
async fn ten_thousand_schedules_are_looked_after_in_a_hundred_calls() {
    const SCHEDULES: u64 = 10_000;
    let memory = Arc::new(MemoryStore::new(Clock::Manual(ManualClock::new(minute(0)))));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let counting = FaultyStore::new(memory, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Fault::Pass
    });
    let client = Client::new(Arc::new(counting));
    let job = NewJob::new(client.make_id(), "report", "reports", Payload::json("{\"of\":\"sales\"}"));
    let schedule = Schedule::new(Cron::every(MINUTE * 60).unwrap(), job).unwrap();
    let value = serde_json::to_vec(&schedule).unwrap();
    for n in 0..SCHEDULES {
        let put = DocOp::Put {
            key: format!("schedule/{n:05}"),
            precondition: Precondition::Always,
            value: value.clone(),
        };
        client.store().doc(&put).await.unwrap();
    }
    let enqueue_next = async || {
        calls.store(0, Ordering::Relaxed);
        let enqueued = client.enqueue_ticks().await.unwrap();
        (enqueued, calls.load(Ordering::Relaxed))
    };
    for expected in [SCHEDULES, 0] {
        let (enqueued, calls) = enqueue_next().await;
        assert_eq!(enqueued, expected);
        assert!(calls <= 100, "{calls} calls for {SCHEDULES} schedules");
    }
    let waiting = client.schedule("00007").waiting().await.unwrap().unwrap();
    client.cancel(waiting.id).await.unwrap();
    assert_eq!(enqueue_next().await.0, 1);
}

/// The schedules of a worker are there once it has started, though a slow store takes its time.
#[tokio::test]
async fn a_schedule_can_be_fired_once_its_worker_has_started() {
    const SLOW: Duration = Duration::from_millis(300);
    let memory = Arc::new(MemoryStore::new(Clock::System));
    let slow =
        FaultyStore::new(memory.clone(), |verb| if verb == "doc" { Fault::Delay(SLOW) } else { Fault::Pass });
    let (slow, client) = (Client::new(Arc::new(slow)), Client::new(memory));
    let worker =
        Worker::new(&slow).handle(async |_: Report, _: Ctx| ()).cron("nightly", every_minute(), report());
    let (live, end) = (worker.live(), punctual::CancellationToken::new());
    let working = tokio::spawn(worker.run_until(end.clone()));
    live.started().await;
    let fired = client.schedule("nightly").fire().await;
    assert!(fired.as_ref().is_ok_and(Enqueued::is_new), "{fired:?}");
    end.cancel();
    working.await.unwrap().unwrap();
}

/// Nor does anybody wait for a worker that can't be.
#[tokio::test]
async fn a_worker_that_has_ended_is_waited_for_no_longer() {
    let t = TestQueue::new();
    let worker = t.worker();
    let live = worker.live();
    assert_eq!(
        worker.run_until(punctual::CancellationToken::new()).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    live.started().await;
}
