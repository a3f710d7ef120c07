//! A worker is registered on Redis, too, and stops by an order.

use std::time::Duration;

use punctual::{
    Client, Ctx, JobRecord, Worker,
    worker::{Shutdown, WorkerOrder},
};

use super::{LOOK, console::Console, server::Server};

/// How long is waited for what must come.
const PATIENCE: Duration = Duration::from_mins(1);

#[tokio::test]
async fn a_worker_registers_itself_and_stops_by_an_order() {
    let server = Server::start(&[]);
    let client = Client::connect(&server.url()).await.unwrap();
    let worker = Worker::new(&client).name("one").queue("mail").register_every(Duration::from_millis(20));
    let worker = worker.handle_raw(|_: JobRecord, _: Ctx| std::future::ready(()));
    let working = tokio::spawn(worker.run_until(Shutdown::default()));
    let life = async {
        let info = loop {
            if let Some(info) = client.workers(None).await.unwrap().workers.pop() {
                break info;
            }
        };
        assert_eq!((&*info.name, &*info.queues[0].name, &*info.kinds[0]), ("one", "mail", "*"));
        client.order_worker(&info.id, WorkerOrder::Stop).await.unwrap().unwrap();
        working.await.unwrap().unwrap();
    };
    tokio::time::timeout(PATIENCE, life).await.unwrap();
    assert!(client.workers(None).await.unwrap().workers.is_empty());
}

/// Somebody empties the server under a worker. It registers, and sets its schedule again.
#[cfg(feature = "cron")]
#[tokio::test]
async fn a_worker_of_an_emptied_server_sets_its_schedules_again() {
    #[derive(serde::Serialize, serde::Deserialize, punctual::Job)]
    #[job(kind = "daily")]
    struct Daily;
    let server = Server::start(&[]);
    let (metrics, health) = (punctual::client::Metrics::default(), punctual::worker::Health::default());
    let url = server.url();
    let client = Client::connect(&url).await.unwrap();
    let its_own = Client::connect(&url).await.unwrap().with_metrics(&metrics);
    let worker =
        Worker::new(&its_own).queue("mail").register_every(Duration::from_millis(20)).health(&health);
    let cron = punctual::schedule::Cron::every(Duration::from_hours(24)).unwrap();
    let worker = worker.cron("daily", cron, Daily).handle(async |_: Daily, _: Ctx| ());
    let working = tokio::spawn(worker.run_until(Shutdown::default()));
    let life = async {
        for _ in 0..3 {
            while client.schedule("daily").get().await.unwrap().is_none()
                || client.workers(None).await.unwrap().workers.is_empty()
            {
                tokio::task::yield_now().await;
            }
            let was = client.store().identity().await.unwrap();
            Console::open(&server.socket()).unwrap().say(&["FLUSHALL"]).unwrap();
            assert_ne!(client.store().identity().await.unwrap(), was);
        }
        while metrics.now().store_changes < 3 {
            tokio::time::sleep(LOOK).await;
        }
        // The loop notes it with its next beat.
        while !health.now().text.starts_with("held up: the store is another one than before") {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, life).await.unwrap();
    working.abort();
}
