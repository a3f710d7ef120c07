//! Outages: what workers and their store keep together.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use punctual::{
    CancellationToken, Client, Ctx, JobRecord, Result, State, Worker,
    testing::{Fault, FaultyStore},
    worker::WorkReport,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinHandle,
    time::timeout,
};

use crate::fixture::{Fixture, QUEUE, millis, secs};

/// Longer than anything takes here, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(30);

/// A worker on the way to a store that can be away.
struct Working {
    task: JoinHandle<Result<WorkReport>>,
    stop: CancellationToken,
    /// Each call, and whether it met the store.
    calls: UnboundedReceiver<(&'static str, bool)>,
    begun: UnboundedReceiver<()>,
}

impl Working {
    /// Runs jobs until `end`.
    fn start(t: &Fixture, is_away: &Arc<AtomicBool>, end: &CancellationToken) -> Self {
        let ((called, calls), (begin, begun)) = (unbounded_channel(), unbounded_channel());
        let is_away = Arc::clone(is_away);
        let store = FaultyStore::new(Arc::clone(&t.store), move |verb| {
            let is_met = !is_away.load(Ordering::Relaxed);
            let _ = called.send((verb, is_met));
            if is_met { Fault::Pass } else { Fault::Before }
        });
        let (end, stop) = (end.clone(), CancellationToken::new());
        let worker = Worker::new(&Client::new(Arc::new(store))).queue(QUEUE).slots(4);
        let worker = worker.handle_raw(move |_: JobRecord, _: Ctx| {
            let _ = begin.send(());
            end.clone().cancelled_owned()
        });
        let task = tokio::spawn(worker.run_until(stop.clone()));
        Self { task, stop, calls, begun }
    }

    /// Waits until a verb is called again.
    async fn called(&mut self, verb: &str, is_met: bool) {
        let called = async { while self.calls.recv().await.unwrap() != (verb, is_met) {} };
        timeout(PATIENCE, called).await.unwrap_or_else(|_| panic!("no {verb}, met: {is_met}"));
    }

    async fn end(self) -> WorkReport {
        self.stop.cancel();
        self.task.await.unwrap().unwrap()
    }
}

/// S9, S14: a worker that lives keeps its jobs through an outage of any length, whoever calls first after it. It also keeps the verdict
/// of a job that ends meanwhile.
pub(crate) async fn no_outage_costs_a_worker_that_lives_its_job(t: Fixture) {
    let lengths = [millis(600), secs(1), secs(3), secs(16), secs(40)];
    for (away, ends) in lengths.into_iter().flat_map(|away| [(away, false), (away, true)]) {
        let (is_away, end) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let id = t.add_with(|job| job.options.lease = Some(secs(1))).await;
        let mut holder = Working::start(&t, &is_away, &end);
        timeout(PATIENCE, holder.begun.recv()).await.expect("the job begins").unwrap();
        let mut idle = Working::start(&t, &is_away, &end);
        idle.called("reserve", true).await;

        is_away.store(true, Ordering::Relaxed);
        t.clock.advance(away);
        holder.called("extend", false).await;
        if ends {
            end.cancel();
            holder.called("settle", false).await;
        }
        is_away.store(false, Ordering::Relaxed);
        assert_eq!(t.reserve(0).await.reclaimed, [], "away for {away:?}, ends: {ends}");
        if !ends {
            holder.called("extend", true).await;
            end.cancel();
        }
        let ended = async {
            while t.get(id).await.state != State::Done {
                tokio::time::sleep(millis(5)).await;
            }
        };
        timeout(PATIENCE, ended).await.expect("the job ends");
        let [holder, idle] = [holder.end().await, idle.end().await];
        assert_eq!((holder.done, holder.lost, idle.runs()), (1, 0, 0), "away for {away:?}");
        assert_eq!((t.get(id).await.attempt, t.get(id).await.expired_leases), (1, 0), "away for {away:?}");
    }
}
