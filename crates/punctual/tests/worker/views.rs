//! The views of the last hour: what was settled, in sums that are added to the store beside the loop.

use super::*;

/// Each sort of a view as names and runs, by names.
fn names(all: &[punctual::toolkit::Ran]) -> Vec<(&str, u64)> {
    let mut names: Vec<_> = all.iter().map(|ran| (&*ran.name, ran.runs)).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn runs_are_counted_by_kind_queue_group_and_error() {
    let rig = Rig::new();
    for n in 0..12 {
        let job = rig.client.enqueue(Work { n });
        let job = if n % 2 == 0 { job.group(if n % 4 == 0 { "acme" } else { "other" }) } else { job };
        job.await.unwrap();
    }
    rig.client.enqueue(Other {}).await.unwrap();
    let (handler, mut told) = telling(|n| match n {
        0..6 => Outcome::Done,
        6..8 => Outcome::retry(format_args!("smtp 421\nto {n}")),
        8 => Outcome::Dead("no such address".into()),
        9 => panic!("nine"),
        10 => Outcome::Snooze(SECOND),
        _ => Outcome::Cancel,
    });
    let worker =
        rig.worker().queue("default").queue("other").handle(handler).handle(async |_: Other, _: Ctx| {});
    let (stop, working) = start(worker);
    for _ in 0..12 {
        told.recv().await.unwrap();
    }
    while rig.client.count(Some("other")).await.unwrap().done == 0 {
        tokio::task::yield_now().await;
    }
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().runs(), 13);
    let hour = rig.client.last_hour(10).await.unwrap();
    assert_eq!(names(&hour.kinds), [("test.other", 1), ("test.work", 12)]);
    assert_eq!(names(&hour.queues), [("default", 12), ("other", 1)]);
    assert_eq!(names(&hour.groups), [("acme", 3), ("other", 3)]);
    assert!(hour.groups.iter().all(|group| group.queue.as_deref() == Some("default")));
    assert_eq!(names(&hour.errors), [("no such address", 1), ("panic: nine", 1), ("smtp #", 2)]);
    rig.clock.advance(Duration::from_hours(1));
    assert_eq!(rig.client.last_hour(10).await.unwrap(), punctual::toolkit::LastHour::default());
    rig.client.leaderboard("$kinds").add("mine", 1).await.unwrap_err();
}

/// What is added is no part of a job's life: a store that refuses or loses it changes nothing else.
#[tokio::test]
async fn a_store_that_takes_no_views_runs_its_jobs() {
    for fault in [Fault::Before, Fault::After, Fault::Delay(Duration::from_hours(1))] {
        let rig = Rig::faulty(move |verb| if verb == "tool" { fault } else { Fault::Pass });
        for n in 0..3 {
            rig.enqueue(n).await;
        }
        let (handler, mut told) = telling(|_| Outcome::Done);
        let (stop, working) = start(rig.worker().slots(1).handle(handler));
        for _ in 0..3 {
            told.recv().await.unwrap();
        }
        stop.cancel();
        assert_eq!(working.await.unwrap().unwrap().done, 3, "{fault:?}");
    }
}

/// A panic in what is added ends nothing.
#[tokio::test]
async fn a_panic_in_the_views_does_not_end_the_worker() {
    let mut calls = 0;
    let mut rig = Rig::faulty(move |verb| {
        calls += u32::from(verb == "tool");
        assert!(verb != "tool" || calls != 1, "on purpose");
        Fault::Pass
    });
    rig.enqueue(1).await;
    let (handler, mut told) = telling(|_| Outcome::Done);
    let (stop, working) = start(rig.worker().handle(handler));
    told.recv().await.unwrap();
    rig.called("tool").await;
    rig.enqueue(2).await;
    told.recv().await.unwrap();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 2);
    assert_eq!(names(&rig.client.last_hour(10).await.unwrap().kinds), [("test.work", 1)]);
}
