//! Who hears of the dead.

use super::*;

#[tokio::test]
async fn on_dead_hears_of_jobs_that_a_settle_ended() {
    let rig = Rig::new();
    rig.client.enqueue(Work { n: 1 }).max_attempts(1).await.unwrap();
    rig.enqueue(2).await;
    let (tell, mut told) = unbounded_channel();
    let (handler, _) = telling(|n| if n == 1 { Outcome::retry("no") } else { Outcome::Dead("never".into()) });
    let worker = rig.worker().handle(handler).on_dead(move |job, reason| {
        let tell = tell.clone();
        async move {
            let _ = tell.send((job.state, reason, job.failures.len()));
        }
    });
    let (stop, working) = start(worker);
    let mut dead = [told.recv().await.unwrap(), told.recv().await.unwrap()];
    dead.sort();
    assert_eq!(dead, [(State::Dead, "attempts".to_owned(), 1), (State::Dead, "never".to_owned(), 1)]);
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().dead, 2);
}

/// S9: a worker that crashed tells nobody; whoever takes its lease back does.
#[tokio::test]
async fn on_dead_hears_of_jobs_whose_lease_was_reclaimed_for_the_last_time() {
    let rig = Rig::new();
    rig.client.enqueue(Work { n: 1 }).max_attempts(1).await.unwrap().id().unwrap();
    rig.crash_with_one("default").await;
    pass_time(&rig.memory, &rig.clock, Duration::from_secs(2)).await;
    let (tell, mut told) = unbounded_channel();
    let (handler, _) = telling(|_| Outcome::Done);
    let worker = rig.worker().handle(handler).on_dead(move |job, reason| {
        let _ = tell.send((job.kind, reason));
        std::future::ready(())
    });
    let (stop, working) = start(worker);
    assert_eq!(told.recv().await.unwrap(), ("test.work".to_owned(), "attempts".to_owned()));
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.reclaimed, report.runs()), (1, 0));
}
