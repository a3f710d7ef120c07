//! What runs tell and give, and what they are told.

use std::sync::mpsc::TryRecvError;

use punctual::{
    Payload,
    job::{LogLine, Notes, Progress},
    limits::RESULT_BYTES_MAX,
};
use tokio::time::timeout;

use super::*;

/// Less than a heartbeat of [`LONG`].
const PATIENCE: Duration = Duration::from_secs(12);

impl Rig {
    async fn enqueue_long(&self) -> JobId {
        self.client.enqueue(Work { n: 1 }).lease(LONG).await.unwrap().id().unwrap()
    }
}

fn progress(notes: &Notes) -> (u64, Option<u64>, Option<&str>) {
    let Progress { done, total, message } = notes.progress.as_ref().unwrap();
    (*done, *total, message.as_deref())
}

fn lines(notes: &Notes) -> Vec<(u32, &str)> {
    notes.log.iter().map(|LogLine { attempt, text, .. }| (*attempt, text.as_str())).collect()
}

#[tokio::test]
async fn a_result_is_kept() {
    let (report, job) = run_one(Outcome::done_with([1, 2])).await;
    assert_eq!((report.done, job.state, job.result), (1, State::Done, Some(Payload::json("[1,2]"))));
}

/// To run it again would not make it smaller, and nobody would know that it is missing.
#[tokio::test]
async fn a_result_over_its_limit_makes_its_job_dead() {
    let (report, job) = run_one(Outcome::DoneWith(Payload::json(vec![b'7'; RESULT_BYTES_MAX + 1]))).await;
    assert_eq!((report.dead, job.state, job.result), (1, State::Dead, None));
    assert!(job.reason.unwrap().contains("65537 bytes"));
}

/// Many large results are settled in several calls.
#[tokio::test]
async fn results_of_many_runs_are_settled_in_slices() {
    let rig = Rig::new();
    for n in 0..40 {
        rig.enqueue(n).await;
    }
    let large = Outcome::DoneWith(Payload::json("7".repeat(RESULT_BYTES_MAX)));
    let (handler, mut told) = telling(move |_| large.clone());
    let (stop, working) = start(rig.worker().handle(handler));
    for _ in 0..40 {
        told.recv().await.unwrap();
    }
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.lost), (40, 0));
}

#[tokio::test]
async fn what_a_run_tells_is_kept_when_it_ends() {
    let mut rig = Rig::new();
    let id = rig.enqueue_long().await;
    let (stop, working) = start(rig.worker().handle(async |_: Work, ctx: Ctx| {
        ctx.progress(1, None);
        ctx.message("counting");
        ctx.progress(2, 3);
        ctx.log("two of three");
    }));
    rig.called("settle").await;
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 1);
    let job = rig.get(id).await;
    assert_eq!(progress(&job.notes), (2, Some(3), Some("counting")));
    assert_eq!(lines(&job.notes), [(1, "two of three")]);
}

#[tokio::test]
async fn what_a_run_tells_is_seen_while_it_runs() {
    let mut rig = Rig::new();
    let id = rig.enqueue_long().await;
    let (stop, working) = start(rig.worker().handle(async |_: Work, ctx: Ctx| {
        ctx.progress(1, 2);
        ctx.cancel_token().cancelled().await;
    }));
    rig.called("extend").await;
    while rig.get(id).await.notes.is_empty() {
        tokio::task::yield_now().await;
    }
    let job = rig.get(id).await;
    assert_eq!((job.state, progress(&job.notes)), (State::Running, (1, Some(2), None)));
    stop.cancel();
    working.await.unwrap().unwrap();
}

/// The next run goes on from what the last one told.
#[tokio::test]
async fn notes_are_handed_on_from_run_to_run() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let tell = tell.clone();
        async move {
            let done = ctx.record().notes.progress.as_ref().map_or(0, |progress| progress.done);
            ctx.progress(done + 1, 2);
            ctx.log(format!("run {}", done + 1));
            let _ = tell.send(done);
            if done == 0 { Outcome::retry("half") } else { Outcome::Done }
        }
    }));
    assert_eq!(told.recv().await, Some(0));
    while rig.get(id).await.attempt == 1 {
        tokio::task::yield_now().await;
    }
    rig.clock.advance(Duration::from_secs(10));
    assert_eq!(told.recv().await, Some(1));
    stop.cancel();
    working.await.unwrap().unwrap();
    let job = rig.get(id).await;
    assert_eq!((job.state, progress(&job.notes)), (State::Done, (2, Some(2), None)));
    assert_eq!(lines(&job.notes), [(1, "run 1"), (2, "run 2")]);
}

/// A run ends as it says, whatever becomes of its words.
#[tokio::test]
async fn a_store_that_takes_no_words_loses_only_them() {
    let rig = Rig::faulty(|verb| if verb == "extend" { Fault::Before } else { Fault::Pass });
    let id = rig.enqueue_long().await;
    let done = start(rig.worker().handle(async |_: Work, ctx: Ctx| ctx.log("hello")));
    while rig.get(id).await.state != State::Done {
        tokio::task::yield_now().await;
    }
    done.0.cancel();
    assert_eq!(done.1.await.unwrap().unwrap().done, 1);
    assert_eq!(rig.get(id).await.notes, Notes::default());
}

/// What the store did not hear the first time is told again when the run ends.
#[tokio::test]
async fn what_was_not_heard_is_told_again() {
    let mut failed = false;
    let mut rig = Rig::faulty(move |verb| {
        let fails = verb == "extend" && !std::mem::replace(&mut failed, true);
        if fails { Fault::Before } else { Fault::Pass }
    });
    let id = rig.enqueue_long().await;
    let (end, ended) = tokio::sync::watch::channel(false);
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let mut ended = ended.clone();
        async move {
            ctx.log("hello");
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }));
    rig.called("extend").await;
    end.send(true).unwrap();
    stop.cancel();
    working.await.unwrap().unwrap();
    assert_eq!(lines(&rig.get(id).await.notes), [(1, "hello")]);
}

/// The same, of a run that goes on and tells nothing more.
#[tokio::test]
async fn what_was_not_heard_is_told_again_while_the_run_goes_on() {
    let mut failed = false;
    let rig = Rig::faulty(move |verb| {
        let fails = verb == "extend" && !std::mem::replace(&mut failed, true);
        if fails { Fault::Before } else { Fault::Pass }
    });
    let id = rig.enqueue_long().await;
    let (stop, working) = start(rig.worker().handle(async |_: Work, ctx: Ctx| {
        ctx.log("hello");
        ctx.cancel_token().cancelled().await;
    }));
    let heard = async {
        while rig.get(id).await.notes.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, heard).await.unwrap();
    stop.cancel();
    working.await.unwrap().unwrap();
}

/// Notes that are on their way when their run ends are not overtaken by its settlement.
#[tokio::test]
async fn a_settlement_waits_for_notes_on_their_way() {
    let mut begun = false;
    let mut rig = Rig::faulty(move |verb| {
        let is_first = verb == "extend" && !std::mem::replace(&mut begun, true);
        if is_first { Fault::Late(Duration::from_millis(250)) } else { Fault::Pass }
    });
    let id = rig.enqueue_long().await;
    let (end, ended) = tokio::sync::watch::channel(false);
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let mut ended = ended.clone();
        async move {
            ctx.log("hello");
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }));
    rig.called("extend").await;
    end.send(true).unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 1);
    assert_eq!(lines(&rig.get(id).await.notes), [(1, "hello")]);
}

/// Nor are they overtaken by newer ones of the same run.
#[tokio::test]
async fn notes_on_their_way_are_not_overtaken() {
    let mut first = ["extend", "settle"].map(|verb| (verb, true));
    let mut rig =
        Rig::faulty(move |verb| match first.iter_mut().find(|(of, is_first)| *of == verb && *is_first) {
            Some(first) => {
                first.1 = false;
                Fault::Late(Duration::from_millis(if verb == "extend" { 150 } else { 300 }))
            }
            None => Fault::Pass,
        });
    let id = rig.enqueue_long().await;
    let (end, ended) = tokio::sync::watch::channel(false);
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let mut ended = ended.clone();
        async move {
            ctx.log("one");
            let _ = ended.wait_for(|ended| *ended).await;
            ctx.log("two");
        }
    }));
    rig.called("extend").await;
    end.send(true).unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 1);
    assert_eq!(lines(&rig.get(id).await.notes), [(1, "one"), (1, "two")]);
}

/// What is told after the end of a run, again and again, as by a thread that outlives it, holds up nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_goes_on_telling_holds_up_no_settlement() {
    // It tells again whenever its notes are on their way. The time for them is bounded, too, but many rounds fit into it.
    let (telling, rounds) = (Arc::new(Mutex::new(None::<Ctx>)), Arc::new(AtomicUsize::new(0)));
    let (teller, until_settled, mut count) = (Arc::clone(&telling), Arc::clone(&rounds), 0);
    let rig = Rig::faulty(move |verb| {
        if verb == "extend" {
            count += 1;
            teller.lock().unwrap().iter().for_each(|ctx| ctx.progress(1, None));
        }
        if verb == "settle" {
            until_settled.store(count, Ordering::SeqCst);
        }
        Fault::Pass
    });
    let id = rig.enqueue_long().await;
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        ctx.progress(1, None);
        *telling.lock().unwrap() = Some(ctx);
        async {}
    }));
    let done = async {
        while rig.get(id).await.state != State::Done {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, done).await.expect("its settlement waits for what it tells");
    let rounds = rounds.load(Ordering::SeqCst);
    assert!((1..=10).contains(&rounds), "{rounds} rounds of notes before the settlement");
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 1);
}

/// Notes that hang do not hold up those of another run.
#[tokio::test]
async fn notes_that_hang_hold_up_no_last_notes_of_others() {
    let mut begun = false;
    let mut rig = Rig::faulty(move |verb| {
        let is_first = verb == "extend" && !std::mem::replace(&mut begun, true);
        if is_first { Fault::Late(Duration::from_hours(1)) } else { Fault::Pass }
    });
    rig.enqueue_long().await;
    let (stop, working) = start(rig.worker().slots(2).handle(async |job: Work, ctx: Ctx| {
        ctx.log("hello");
        if job.n == 1 {
            ctx.cancel_token().cancelled().await;
        }
    }));
    rig.called("extend").await;
    let id = rig.client.enqueue(Work { n: 2 }).lease(LONG).await.unwrap().id().unwrap();
    let done = async {
        while rig.get(id).await.state != State::Done {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, done).await.unwrap();
    assert_eq!(lines(&rig.get(id).await.notes), [(1, "hello")]);
    stop.cancel();
    working.abort();
}

/// S12: a cancel reaches a run at once, not with the next heartbeat.
#[tokio::test]
async fn a_cancel_is_pushed() {
    let rig = Rig::new();
    let id = rig.enqueue_long().await;
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(None);
            ctx.cancel_token().cancelled().await;
            let _ = tell.send(ctx.stop_reason());
            Outcome::retry("stopped")
        }
    }));
    assert_eq!(told.recv().await, Some(None));
    assert_eq!(rig.client.cancel(id).await.unwrap(), Cancelled::Requested);
    assert_eq!(timeout(PATIENCE, told.recv()).await.unwrap(), Some(Some(Stop::Cancelled)));
    let ended = timeout(PATIENCE, rig.client.finished(id, LONG)).await.unwrap().unwrap().unwrap();
    assert_eq!(ended.state, State::Cancelled);
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().cancelled, 1);
}

/// S12: so does the next one, right behind it.
#[tokio::test]
async fn cancels_in_a_row_are_pushed() {
    let rig = Rig::new();
    let ids = [rig.enqueue_long().await, rig.enqueue_long().await, rig.enqueue_long().await];
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(());
            ctx.cancel_token().cancelled().await;
            let _ = tell.send(());
        }
    }));
    for _ in ids {
        told.recv().await.unwrap();
    }
    for id in ids {
        assert_eq!(rig.client.cancel(id).await.unwrap(), Cancelled::Requested);
        timeout(PATIENCE, told.recv()).await.unwrap().unwrap();
    }
    stop.cancel();
    // Each of them said that its work was finished.
    assert_eq!(working.await.unwrap().unwrap().done, 3);
}

/// A run that blocks its thread, and goes on telling, keeps its lease no longer for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_blocked_run_that_goes_on_telling_is_not_extended() {
    let mut rig = Rig::new();
    let job = rig.client.enqueue(Work { n: 1 }).lease(LONG).timeout(Duration::from_millis(1)).await.unwrap();
    let talker = rig.enqueue_long().await;
    let (unblock, blocks) = std::sync::mpsc::channel::<()>();
    let blocks = Arc::new(Mutex::new(blocks));
    let (begin, mut begun) = unbounded_channel();
    let (stop, working) = start(rig.worker().slots(2).handle(move |_: Work, ctx: Ctx| {
        let (blocks, begin, talker) = (Arc::clone(&blocks), begin.clone(), talker);
        async move {
            let _ = begin.send(());
            while ctx.id() == talker && ctx.stop_reason().is_none() {
                ctx.progress(1, None);
                tokio::task::yield_now().await;
            }
            // A test that fails lets go of it, too.
            while ctx.id() != talker && blocks.lock().unwrap().try_recv() == Err(TryRecvError::Empty) {
                ctx.progress(1, None);
                std::thread::yield_now();
            }
        }
    }));
    begun.recv().await.unwrap();
    begun.recv().await.unwrap();
    // What both told at first may be on its way.
    rig.called("extend").await;
    rig.called("extend").await;
    let until = async || rig.client.get(job.id().unwrap()).await.unwrap().unwrap().running.unwrap().until;
    let before = until().await;
    rig.clock.advance(SECOND);
    assert_eq!(until().await, before);
    let talks = async || rig.get(talker).await.running.unwrap().until;
    let begin = talks().await;
    while talks().await <= begin.after(SECOND / 2) {
        tokio::task::yield_now().await;
    }
    assert_eq!(until().await, before, "left alone");
    unblock.send(()).unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 2);
}

/// A worker whose runs never end and don't listen, and who hears when one begins and is dropped.
fn deaf(rig: &Rig) -> (Worker, UnboundedReceiver<()>, UnboundedReceiver<()>) {
    let (begin, begun) = unbounded_channel();
    let (tell, dropped) = unbounded_channel();
    let worker = rig.worker().cancel_grace(Duration::from_millis(20)).handle(move |_: Work, _: Ctx| {
        let (told, begin) = (Told(tell.clone()), begin.clone());
        async move {
            let _told = told;
            let _ = begin.send(());
            pending::<()>().await;
        }
    });
    (worker, begun, dropped)
}

/// S12: a handler that does not listen has its grace, and is dropped.
#[tokio::test]
async fn a_run_that_does_not_listen_is_dropped() {
    let rig = Rig::new();
    let id = rig.enqueue_long().await;
    let (worker, mut begun, mut dropped) = deaf(&rig);
    let (stop, working) = start(worker);
    begun.recv().await.unwrap();
    assert_eq!(rig.client.cancel(id).await.unwrap(), Cancelled::Requested);
    timeout(PATIENCE, dropped.recv()).await.unwrap().unwrap();
    let ended = timeout(PATIENCE, rig.client.finished(id, LONG)).await.unwrap().unwrap().unwrap();
    assert_eq!((ended.state, ended.attempt), (State::Cancelled, 1));
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().cancelled, 1);
}

/// S7: a run whose lease is lost has the same grace: another one may be going on.
#[tokio::test]
async fn a_run_whose_lease_is_lost_is_dropped() {
    let rig = Rig::new();
    let id = rig.enqueue(1).await;
    let (worker, mut begun, mut dropped) = deaf(&rig);
    let (stop, working) = start(worker.slots(1));
    begun.recv().await.unwrap();
    // The loop is busy with its one slot: somebody else takes the lease back, and the job.
    while rig.get(id).await.attempt == 1 {
        rig.clock.advance(SECOND);
        let other = Reserve {
            call: punctual::store::CallId { instance: 7, number: rig.clock.now().as_ms() },
            worker: "other".into(),
            queues: vec![QueueRequest { queue: "default".into(), share: 1, at_most: 1 }],
            n: 1,
            lease: None,
            company: false,
        };
        let _ = rig.client.store().reserve(&other).await.unwrap();
    }
    timeout(PATIENCE, dropped.recv()).await.unwrap().unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().lost, 1);
}
