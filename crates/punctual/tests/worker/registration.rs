//! A worker registers itself in the store, follows orders, and disturbs no job by it.

use punctual::{
    store::{DocOp, DocReply, Precondition},
    worker::{Forwarding, WorkerInfo, WorkerOrder, WorkerState},
};

use super::*;

/// How often the workers of these tests register themselves.
const OFTEN: Duration = Duration::from_millis(20);
/// How long is waited for what must come.
const PATIENCE: Duration = Duration::from_mins(1);

/// Waits until the only worker of a store is as expected.
async fn until(client: &Client, is: impl Fn(&WorkerInfo) -> bool) -> WorkerInfo {
    let found = async {
        loop {
            if let [info] = &client.workers(None).await.unwrap().workers[..]
                && is(info)
            {
                return info.clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap()
}

/// Waits until a job is in a state.
async fn until_job(client: &Client, id: JobId, state: State) {
    let found = async {
        while client.get(id).await.unwrap().unwrap().state != state {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap();
}

/// Waits until a worker has ended.
async fn ended(working: JoinHandle<Result<WorkReport>>) -> WorkReport {
    tokio::time::timeout(PATIENCE, working).await.unwrap().unwrap().unwrap()
}

async fn order(client: &Client, id: &str, order: WorkerOrder) {
    let info = client.order_worker(id, order).await.unwrap().unwrap();
    assert_eq!(info.order, Some(order));
}

async fn enqueue(client: &Client, n: u32) -> JobId {
    client.enqueue(Work { n }).await.unwrap().id().unwrap()
}

/// From its start to its end by an order.
async fn a_life(client: &Client) {
    let (handler, mut told) = telling(|_| Outcome::Done);
    let worker = Worker::new(client).name("test").slots(7).register_every(OFTEN).serve_topics(false);
    let worker = worker.weighted([("default", 3), ("other", 1)]).handle(handler);
    let live = worker.live();
    let (callers, working) = start(worker);

    let info = until(client, |info| info.state == WorkerState::Working).await;
    assert_eq!((&*info.name, info.slots, info.pid), ("test", 7, std::process::id()));
    assert_eq!(info.kinds, ["test.work"]);
    let queues: Vec<_> = info.queues.iter().map(|queue| (&*queue.name, queue.weight)).collect();
    assert_eq!(queues, [("default", Some(3)), ("other", Some(1))]);
    assert!(!info.version.is_empty() && info.since <= info.seen);
    let first = enqueue(client, 1).await;
    until_job(client, first, State::Done).await;
    assert_eq!(told.recv().await, Some(1));

    order(client, &info.id, WorkerOrder::Quiet).await;
    let quiet = until(client, |info| info.state == WorkerState::Quiet).await;
    assert_eq!((quiet.order, quiet.since), (None, info.since));
    // Whoever dies elsewhere is still noticed (S9).
    let doomed = client.enqueue(Work { n: 9 }).max_attempts(1).await.unwrap().id().unwrap();
    let reserve = Reserve {
        call: CallId { instance: 7, number: 1 },
        worker: "crashed".into(),
        queues: vec![QueueRequest { queue: "default".into(), share: 1, at_most: 1 }],
        n: 1,
        lease: Some(SECOND),
        company: false,
    };
    assert_eq!(client.store().reserve(&reserve).await.unwrap().jobs.len(), 1);
    until_job(client, doomed, State::Dead).await;
    let second = enqueue(client, 2).await;
    // It is seen again and again, and leaves the job.
    let again = until(client, |info| quiet.seen < info.seen).await;
    until(client, |info| again.seen < info.seen).await;
    assert_eq!(client.get(second).await.unwrap().unwrap().state, State::Waiting);

    order(client, &info.id, WorkerOrder::Resume).await;
    until_job(client, second, State::Done).await;
    assert_eq!(told.recv().await, Some(2));
    until(client, |info| info.state == WorkerState::Working).await;

    order(client, &info.id, WorkerOrder::Stop).await;
    tokio::time::timeout(PATIENCE, live.stopping()).await.unwrap();
    let report = ended(working).await;
    assert_eq!(report.done, 2);
    // The token of the caller can be that of other workers.
    assert!(!callers.is_cancelled());
    assert!(client.workers(None).await.unwrap().workers.is_empty());
    assert_eq!(client.order_worker(&info.id, WorkerOrder::Quiet).await.unwrap(), None);
}

/// The time of the answer is asked for after the order was written: no error says that nothing was changed.
#[tokio::test]
async fn an_order_that_was_written_is_not_denied() {
    let client = Client::connect("memory:").await.unwrap();
    let (handler, _told) = telling(|_| Outcome::Done);
    let worker = Worker::new(&client).name("test").register_every(OFTEN).serve_topics(false);
    let (stop, working) = start(worker.handle(handler));
    let info = until(&client, |info| info.state == WorkerState::Working).await;
    let without_time = FaultyStore::new(Arc::clone(client.store()), |verb| match verb {
        "now" => Fault::Before,
        _ => Fault::Pass,
    });
    let caller = Client::new(Arc::new(without_time));
    let error = caller.order_worker(&info.id, WorkerOrder::Quiet).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}");
    until(&client, |info| info.state == WorkerState::Quiet).await;
    stop.cancel();
    ended(working).await;
}

#[tokio::test]
async fn a_worker_registers_itself_follows_orders_and_leaves_in_memory() {
    a_life(&Client::connect("memory:").await.unwrap()).await;
}

#[tokio::test]
async fn a_worker_registers_itself_follows_orders_and_leaves_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("punctual.db");
    a_life(&Client::connect(&format!("sqlite:{}", file.display())).await.unwrap()).await;
}

#[tokio::test]
async fn a_stop_lets_runs_end_within_the_grace_period() {
    let rig = Rig::new();
    let gate = Arc::new(Semaphore::new(0));
    let (tell, mut told) = unbounded_channel();
    let handler = {
        let gate = Arc::clone(&gate);
        move |_: Work, _: Ctx| {
            let _ = tell.send(());
            let gate = Arc::clone(&gate);
            async move { gate.acquire().await.unwrap().forget() }
        }
    };
    let (_stop, working) = start(rig.worker().register_every(OFTEN).handle(handler));
    let id = rig.enqueue(1).await;
    told.recv().await.unwrap();
    let info = until(&rig.client, |info| info.busy == 1).await;
    order(&rig.client, &info.id, WorkerOrder::Stop).await;
    until(&rig.client, |info| info.state == WorkerState::Stopping).await;
    let late = rig.enqueue(2).await;
    gate.add_permits(2);
    assert_eq!(ended(working).await.done, 1);
    assert_eq!((rig.get(id).await.state, rig.get(late).await.state), (State::Done, State::Waiting));
}

#[tokio::test]
async fn a_killed_worker_is_missing_after_a_minute_and_forgotten_after_a_day() {
    let rig = Rig::new();
    let (handler, _told) = telling(|_| Outcome::Done);
    let (_stop, working) = start(rig.worker().register_every(OFTEN).handle(handler));
    let info = until(&rig.client, |_| true).await;
    let key = format!("worker/{}", info.id);
    let DocReply::Is(Some(doc)) = rig.client.store().doc(&DocOp::Get { key: key.clone() }).await.unwrap()
    else {
        panic!("no document")
    };
    order(&rig.client, &info.id, WorkerOrder::Stop).await;
    ended(working).await;
    // As if it had been killed.
    let put = DocOp::Put { key: key.clone(), precondition: Precondition::IfAbsent, value: doc.value };
    rig.client.store().doc(&put).await.unwrap();
    rig.clock.advance(59 * SECOND);
    assert_eq!(until(&rig.client, |_| true).await.state, WorkerState::Working);
    rig.clock.advance(SECOND);
    assert_eq!(until(&rig.client, |_| true).await.state, WorkerState::Missing);
    rig.clock.advance(24 * 3_600 * SECOND);
    assert!(rig.client.workers(None).await.unwrap().workers.is_empty());
}

/// A store that takes no document, or is slow with them, costs no job and no time.
#[tokio::test]
async fn failures_of_the_registration_disturb_no_job() {
    for fault in [Fault::Before, Fault::After, Fault::Delay(Duration::from_hours(1))] {
        let rig = Rig::faulty(move |verb| if verb == "doc" { fault } else { Fault::Pass });
        let (handler, mut told) = telling(|_| Outcome::Done);
        let (stop, working) = start(rig.worker().register_every(OFTEN).handle(handler));
        let id = rig.enqueue(1).await;
        told.recv().await.unwrap();
        until_job(&rig.client, id, State::Done).await;
        stop.cancel();
        let ended = ended(working).await;
        assert_eq!((ended.done, ended.lost), (1, 0), "{fault:?}");
    }
}

#[tokio::test]
async fn a_forwarder_says_what_it_sent() {
    let rig = Rig::new();
    let (handler, _told) = telling(|_| Outcome::Done);
    let worker = rig.worker().register_every(OFTEN).handle(handler).forwarding(|| {
        let mut of = Forwarding::default();
        (of.to, of.sent) = ("nats://host".to_owned(), 3);
        of
    });
    let (stop, working) = start(worker);
    let forwards = until(&rig.client, |_| true).await.forwards.unwrap();
    assert_eq!((&*forwards.to, forwards.sent, forwards.error), ("nats://host", 3, None));
    stop.cancel();
    ended(working).await;
}

#[tokio::test]
async fn an_order_needs_the_id_of_a_worker() {
    let rig = Rig::new();
    let error = rig.client.order_worker("web-1", WorkerOrder::Stop).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(rig.client.order_worker("00000000c0ffee00", WorkerOrder::Stop).await.unwrap(), None);
}
