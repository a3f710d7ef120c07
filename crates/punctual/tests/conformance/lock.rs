//! Locks.

use std::{pin::pin, time::Duration};

use futures_util::future::join_all;
use punctual::{
    Client, ErrorKind,
    store::{LockOp, LockReply, ToolOp, ToolReply},
};

use crate::fixture::{Fixture, at, millis, secs};

const NAME: &str = "rebuild";
const ANA: u128 = 1;
const BEN: u128 = u128::MAX;

async fn ask(t: &Fixture, op: LockOp) -> LockReply {
    match t.store.tool(&ToolOp::Lock(op)).await.unwrap() {
        ToolReply::Lock(said) => said,
        other => panic!("{other:?}"),
    }
}

fn acquire_of(name: &str, owner: u128, lease: Duration) -> LockOp {
    LockOp::Acquire { name: name.to_owned(), owner, lease }
}

async fn acquire(t: &Fixture, owner: u128) -> LockReply {
    ask(t, acquire_of(NAME, owner, secs(10))).await
}

async fn extend(t: &Fixture, owner: u128) -> LockReply {
    ask(t, LockOp::Extend { name: NAME.to_owned(), owner, lease: secs(10) }).await
}

async fn release(t: &Fixture, owner: Option<u128>) -> LockReply {
    ask(t, LockOp::Release { name: NAME.to_owned(), owner }).await
}

/// The fence of one who holds it.
fn fence(said: &LockReply) -> u64 {
    match said {
        LockReply::Yours(held) | LockReply::Taken(held) => held.fence,
        other => panic!("{other:?}"),
    }
}

/// S7: one owner holds a lock at a time, until its lease ends or it is released.
pub(crate) async fn a_lock_has_one_owner(t: Fixture) {
    let mine = acquire(&t, ANA).await;
    let LockReply::Yours(held) = &mine else { panic!("{mine:?}") };
    assert_eq!((&*held.name, held.until, held.left), (NAME, at(10_000), secs(10)));
    t.clock.advance(millis(9_999));
    let taken = acquire(&t, BEN).await;
    let LockReply::Taken(seen) = &taken else { panic!("{taken:?}") };
    assert_eq!((seen.fence, seen.until, seen.left), (held.fence, at(10_000), millis(1)));
    t.clock.advance(millis(1));
    let next = acquire(&t, BEN).await;
    assert!(matches!(&next, LockReply::Yours(_)) && held.fence < fence(&next), "{next:?}");
    assert!(matches!(acquire(&t, ANA).await, LockReply::Taken(_)));
    assert_eq!(release(&t, Some(BEN)).await, LockReply::Released);
    assert!(matches!(acquire(&t, ANA).await, LockReply::Yours(_)));
    // Of 64 at once one gets it.
    let ops: Vec<_> = (1..=64).map(|owner| ask(&t, acquire_of("other", owner, secs(1)))).collect();
    let owners = join_all(ops).await.iter().filter(|said| matches!(said, LockReply::Yours(_))).count();
    assert_eq!(owners, 1);
}

/// S3: who holds a lock may acquire it again, and goes on under the same fence.
pub(crate) async fn an_acquire_may_be_repeated(t: Fixture) {
    let first = fence(&acquire(&t, ANA).await);
    t.pass(4).await;
    let again = acquire(&t, ANA).await;
    let LockReply::Yours(held) = &again else { panic!("{again:?}") };
    assert_eq!((held.fence, held.until), (first, at(14_000)));
    t.pass(10).await;
    assert!(first < fence(&acquire(&t, ANA).await));
}

/// S8: only the owner extends and releases a lock, and only while it holds it.
pub(crate) async fn only_the_owner_extends_and_releases(t: Fixture) {
    assert_eq!([extend(&t, ANA).await, release(&t, Some(ANA)).await], [LockReply::Free, LockReply::Free]);
    let first = fence(&acquire(&t, ANA).await);
    for said in [extend(&t, BEN).await, release(&t, Some(BEN)).await] {
        assert!(matches!(&said, LockReply::Taken(held) if held.fence == first), "{said:?}");
    }
    t.pass(6).await;
    let held = extend(&t, ANA).await;
    assert!(
        matches!(&held, LockReply::Yours(held) if (held.fence, held.until) == (first, at(16_000))),
        "{held:?}"
    );
    t.pass(10).await;
    assert_eq!([extend(&t, BEN).await, release(&t, Some(BEN)).await], [LockReply::Free, LockReply::Free]);
    let second = fence(&acquire(&t, BEN).await);
    assert!(matches!(extend(&t, ANA).await, LockReply::Taken(held) if held.fence == second));
}

/// S8, S14: a holding that has ended goes on if its owner extends it before anybody else acquires the lock: the clock may have been set
/// forward. It does not if it was released since.
pub(crate) async fn a_lock_that_nobody_took_goes_on(t: Fixture) {
    let first = fence(&acquire(&t, ANA).await);
    t.clock.advance(secs(3_600));
    assert_eq!(ask(&t, LockOp::Show { name: NAME.to_owned() }).await, LockReply::Free);
    let held = extend(&t, ANA).await;
    assert!(
        matches!(&held, LockReply::Yours(held) if (held.fence, held.until) == (first, at(3_610_000))),
        "{held:?}"
    );
    assert!(matches!(acquire(&t, BEN).await, LockReply::Taken(_)));
    for owner in [Some(ANA), None] {
        t.clock.advance(secs(3_600));
        assert_eq!([release(&t, owner).await, extend(&t, ANA).await], [LockReply::Free, LockReply::Free]);
        assert!(matches!(acquire(&t, ANA).await, LockReply::Yours(held) if first < held.fence));
    }
    // It is forgotten a day after its end.
    t.clock.advance(secs(10) + secs(86_400));
    assert_eq!(extend(&t, ANA).await, LockReply::Free);
}

/// S14: a holding of a clock that was ahead ends at most its lease after the first acquire that met it.
pub(crate) async fn a_lock_is_held_no_longer_for_a_step_back(t: Fixture) {
    t.clock.set(at(3_600_000));
    let first = fence(&acquire(&t, ANA).await);
    t.clock.set(at(0));
    let shown = ask(&t, LockOp::Show { name: NAME.to_owned() }).await;
    assert!(matches!(&shown, LockReply::Taken(held) if held.left == secs(10)), "{shown:?}");
    let listed = ask(&t, LockOp::List { limit: 9 }).await;
    assert!(matches!(&listed, LockReply::Listed { locks, .. } if locks[0].left == secs(10)), "{listed:?}");
    for (ms, until) in [(5_000, 15_000), (14_999, 15_000)] {
        t.clock.set(at(ms));
        let taken = acquire(&t, BEN).await;
        assert!(
            matches!(&taken, LockReply::Taken(held) if (held.fence, held.until) == (first, at(until))),
            "{taken:?}"
        );
    }
    t.clock.set(at(15_000));
    let next = acquire(&t, BEN).await;
    assert!(matches!(&next, LockReply::Yours(held) if first < held.fence), "{next:?}");
    // A step back of a minute shortens nothing.
    t.clock.set(at(75_000));
    assert!(matches!(acquire(&t, ANA).await, LockReply::Yours(_)));
    t.clock.set(at(15_000));
    let taken = acquire(&t, BEN).await;
    assert!(matches!(&taken, LockReply::Taken(held) if held.until == at(85_000)), "{taken:?}");
}

/// S10: fences rise over all holdings of all locks, and outlive the locks.
pub(crate) async fn fences_of_locks_rise(t: Fixture) {
    let mut last = 0;
    for i in 0..40_u64 {
        let name = ["a", "b", "c"][i as usize % 3];
        let said = fence(&ask(&t, acquire_of(name, u128::from(i), millis(100))).await);
        assert!(last < said, "{last} then {said}");
        last = said;
        match i % 4 {
            0 => drop(ask(&t, LockOp::Release { name: name.to_owned(), owner: None }).await),
            1 => t.pass(86_400).await,
            _ => t.clock.advance(millis(100)),
        }
    }
    // Be it that the clock goes back.
    t.clock.set(at(0));
    assert!(last < fence(&ask(&t, acquire_of("d", 1, secs(1))).await));
}

/// S7: an operator may end a holding.
pub(crate) async fn an_operator_may_release_a_lock(t: Fixture) {
    assert_eq!(release(&t, None).await, LockReply::Free);
    let first = fence(&acquire(&t, ANA).await);
    let show = LockOp::Show { name: NAME.to_owned() };
    assert_eq!(fence(&ask(&t, show.clone()).await), first);
    assert_eq!(release(&t, None).await, LockReply::Released);
    assert_eq!([ask(&t, show).await, extend(&t, ANA).await], [LockReply::Free, LockReply::Free]);
}

/// S13: the locks that are held are told by the ends of their leases, so many at a time.
pub(crate) async fn locks_are_listed_by_their_ends(t: Fixture) {
    for (name, lease) in [("c", 300), ("b", 200), ("z", 200), ("gone", 100)] {
        ask(&t, acquire_of(name, ANA, millis(lease))).await;
    }
    t.clock.advance(millis(100));
    let list = async |limit| match ask(&t, LockOp::List { limit }).await {
        LockReply::Listed { locks, more } => {
            (locks.into_iter().map(|held| (held.name, held.left)).collect::<Vec<_>>(), more)
        }
        other => panic!("{other:?}"),
    };
    let all = [("b", 100), ("z", 100), ("c", 200)].map(|(name, ms)| (name.to_owned(), millis(ms)));
    assert_eq!(list(1_000).await, (all.to_vec(), false));
    assert_eq!([list(3).await, list(2).await], [(all.to_vec(), false), (all[..2].to_vec(), true)]);
}

/// S13: what is asked of a lock has limits.
pub(crate) async fn locks_have_limits(t: Fixture) {
    let long = "l".repeat(250);
    for op in [
        acquire_of("", ANA, secs(1)),
        acquire_of(&long, ANA, secs(1)),
        acquire_of("a\0b", ANA, secs(1)),
        acquire_of(NAME, ANA, millis(99)),
        acquire_of(NAME, ANA, secs(86_401)),
        LockOp::Extend { name: NAME.to_owned(), owner: ANA, lease: Duration::ZERO },
        LockOp::List { limit: 0 },
        LockOp::List { limit: 1_001 },
    ] {
        let refused = t.store.tool(&ToolOp::Lock(op.clone())).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{op:?}");
    }
    assert!(matches!(ask(&t, acquire_of(&long[1..], ANA, secs(86_400))).await, LockReply::Yours(_)));
}

/// S7: who waits for a lock is woken by its release, without asking again and again.
pub(crate) async fn a_release_wakes_one_that_waits(t: Fixture) {
    let client = Client::new(t.store.clone());
    let lock = client.lock(NAME);
    let hand_over = async || {
        let first = lock.try_acquire().await.unwrap().unwrap();
        let fence = first.fence();
        let mut wait = pin!(lock.acquire(secs(3_600)));
        // It has asked, and waits.
        assert!(tokio::time::timeout(millis(20), &mut wait).await.is_err());
        assert!(first.release().await.unwrap());
        let second = wait.await.unwrap().unwrap();
        assert!(fence < second.fence());
        assert!(second.release().await.unwrap());
    };
    // One that nobody wakes looks by itself after a second at the latest: of so many, all are woken.
    let all = async {
        for _ in 0..30 {
            hand_over().await;
        }
    };
    tokio::time::timeout(secs(20), all).await.expect("each is woken");
    let _held = lock.try_acquire().await.unwrap().unwrap();
    // Nobody waits for ever.
    assert!(lock.acquire(millis(1)).await.unwrap().is_none());
}

/// S7, S14: who waits for a lock has it when the lease of another ends.
pub(crate) async fn the_end_of_a_lease_wakes_one_that_waits(t: Fixture) {
    let client = Client::new(t.store.clone());
    let lock = client.lock(NAME).lease(millis(100));
    let first = lock.try_acquire().await.unwrap().unwrap();
    let mut wait = pin!(lock.acquire(secs(3_600)));
    assert!(tokio::time::timeout(millis(5), &mut wait).await.is_err());
    t.clock.advance(millis(100));
    let second = tokio::time::timeout(secs(20), wait).await.expect("it is free").unwrap().unwrap();
    assert!(first.fence() < second.fence());
    assert!(!first.extend().await.unwrap());
}
