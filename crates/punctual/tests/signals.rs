//! A worker ends by the signals of its process. In a file of its own, because signals are the whole process's.

#![cfg(all(unix, feature = "derive"))]

use std::{future::pending, process::Command, time::Duration};

use punctual::{Client, Ctx, Job, State, Stop, Worker};
use tokio::sync::mpsc::unbounded_channel;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "test.work")]
struct Work {}

fn signal(name: &str) {
    let me = std::process::id().to_string();
    assert!(Command::new("kill").args(["-s", name, &me]).status().is_ok_and(|status| status.success()));
}

/// The first asks handlers to stop, the second doesn't wait for them.
#[tokio::test]
async fn the_first_signal_is_graceful_and_the_second_means_now() {
    let client = Client::connect("memory:").await.unwrap();
    let id = client.enqueue(Work {}).await.unwrap().id().unwrap();
    let (tell, mut told) = unbounded_channel();
    let worker =
        Worker::new(&client).shutdown_grace(Duration::from_hours(1)).handle(move |_: Work, ctx: Ctx| {
            let tell = tell.clone();
            async move {
                let _ = tell.send(None);
                ctx.cancel_token().cancelled().await;
                let _ = tell.send(ctx.stop_reason());
                pending::<()>().await;
            }
        });
    let working = tokio::spawn(worker.run());
    assert_eq!(told.recv().await.unwrap(), None);
    signal("TERM");
    assert_eq!(told.recv().await.unwrap(), Some(Stop::Shutdown));
    signal("INT");
    assert_eq!(working.await.unwrap().unwrap().released, 1);
    let job = client.get(id).await.unwrap().unwrap();
    assert_eq!((job.state, job.attempt), (State::Waiting, 1));
}
