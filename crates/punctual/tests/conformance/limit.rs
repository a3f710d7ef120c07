//! Rate limiters.

use std::time::Duration;

use futures_util::future::join_all;
use punctual::{
    ErrorKind,
    store::{LimitOp, LimitRule, ToolOp, ToolReply},
    toolkit::Allowance,
};

use crate::fixture::{Fixture, millis, secs};

use Allowance::{Allowed, RetryAfter};

fn log(max: u32, period: Duration) -> LimitRule {
    LimitRule::Log { max, period, counts_refused: false }
}

fn gcra(max: u32, period: Duration, burst: u32) -> LimitRule {
    LimitRule::Gcra { max, period, burst }
}

fn op(key: &str, cost: u32, rule: LimitRule) -> LimitOp {
    LimitOp { name: "login".to_owned(), key: key.to_owned(), cost, rule }
}

async fn ask(t: &Fixture, op: LimitOp) -> Allowance {
    match t.store.tool(&ToolOp::Limit(op)).await.unwrap() {
        ToolReply::Limit(said) => said,
        other => panic!("{other:?}"),
    }
}

async fn come(t: &Fixture, rule: LimitRule, cost: u32) -> Allowance {
    ask(t, op("ana", cost, rule)).await
}

/// S2, S14: at most `max` in any window of the period, and what is refused is told how long.
pub(crate) async fn a_log_lets_so_many_pass_in_any_window(t: Fixture) {
    let rule = log(3, secs(1));
    for _ in 0..3 {
        assert_eq!(come(&t, rule, 1).await, Allowed);
        t.clock.advance(millis(100));
    }
    assert_eq!(come(&t, rule, 1).await, RetryAfter(millis(700)));
    t.clock.advance(millis(699));
    assert_eq!(come(&t, rule, 1).await, RetryAfter(millis(1)));
    t.clock.advance(millis(1));
    assert_eq!(come(&t, rule, 1).await, Allowed);
    assert_eq!(come(&t, rule, 1).await, RetryAfter(millis(100)));
}

/// S2: calls of the same millisecond count each for itself.
pub(crate) async fn calls_of_one_millisecond_are_distinct(t: Fixture) {
    let rule = log(50, secs(60));
    let said = join_all((0..64).map(|_| come(&t, rule, 1))).await;
    assert_eq!(said.into_iter().filter(|said| said.is_allowed()).count(), 50);
    let rule = gcra(50, secs(60), 50);
    let said = join_all((0..64).map(|_| come(&t, rule, 1))).await;
    assert_eq!(said.into_iter().filter(|said| said.is_allowed()).count(), 50);
}

/// S2: a call may count as several, all of which pass or none.
pub(crate) async fn a_call_may_cost_more_than_one(t: Fixture) {
    let rule = log(5, secs(1));
    assert_eq!(come(&t, rule, 2).await, Allowed);
    t.clock.advance(millis(10));
    assert_eq!([come(&t, rule, 2).await, come(&t, rule, 2).await], [Allowed, RetryAfter(millis(990))]);
    assert_eq!([come(&t, rule, 5).await, come(&t, rule, 1).await], [RetryAfter(millis(1_000)), Allowed]);
}

/// S2: what is refused counts only if that is asked for.
pub(crate) async fn refused_calls_count_if_asked_for(t: Fixture) {
    let rule = LimitRule::Log { max: 2, period: secs(1), counts_refused: true };
    assert_eq!(come(&t, rule, 2).await, Allowed);
    t.clock.advance(millis(600));
    assert_eq!(come(&t, rule, 1).await, RetryAfter(millis(400)));
    t.clock.advance(millis(300));
    assert_eq!(come(&t, rule, 1).await, RetryAfter(millis(700)));
    assert_eq!(come(&t, rule, 2).await, RetryAfter(secs(1)));
    t.clock.advance(secs(1));
    assert_eq!([come(&t, rule, 2).await, come(&t, log(2, secs(1)), 1).await], [Allowed, RetryAfter(secs(1))]);
}

/// S2: keys are counted apart, so are limiters, and the two ways to count.
pub(crate) async fn keys_are_counted_apart(t: Fixture) {
    let rule = log(1, secs(1));
    for key in ["ana", "ben", "a{1}", "ü"] {
        assert_eq!(ask(&t, op(key, 1, rule)).await, Allowed);
        assert_eq!(ask(&t, op(key, 1, rule)).await, RetryAfter(secs(1)));
    }
    let other = LimitOp { name: "reply".to_owned(), ..op("ana", 1, rule) };
    assert_eq!(ask(&t, other).await, Allowed);
    assert_eq!(come(&t, gcra(1, secs(1), 1), 1).await, Allowed);
}

/// S2: a log of thousands is as exact as a short one.
pub(crate) async fn a_long_log_is_exact(t: Fixture) {
    let rule = log(1_000, secs(1));
    for cost in [400, 1, 599] {
        assert_eq!(come(&t, rule, cost).await, Allowed);
        t.clock.advance(millis(10));
    }
    assert_eq!(come(&t, rule, 1).await, RetryAfter(millis(970)));
    // 3,000 later it is as long as it may be, and was cut.
    for _ in 0..5 {
        t.clock.advance(millis(1_000));
        assert_eq!([come(&t, rule, 700).await, come(&t, rule, 300).await], [Allowed, Allowed]);
        assert_eq!(come(&t, rule, 1).await, RetryAfter(secs(1)));
    }
    // Under a lower limit the last ones count, and under a higher one no others are known.
    assert_eq!(come(&t, log(10, secs(1)), 1).await, RetryAfter(secs(1)));
    assert_eq!(
        [come(&t, log(1_001, secs(1)), 1).await, come(&t, rule, 1).await],
        [Allowed, RetryAfter(secs(1))]
    );
    t.clock.advance(secs(1));
    assert_eq!(
        [come(&t, log(10, secs(1)), 10).await, come(&t, log(12, secs(1)), 2).await],
        [Allowed, Allowed]
    );
    assert_eq!(come(&t, rule, 989).await, RetryAfter(secs(1)));
}

/// S2, S14: a rate lets a burst pass, then one in each step of the period; thirds of milliseconds are not lost.
pub(crate) async fn a_rate_lets_a_burst_pass_and_then_one_each_step(t: Fixture) {
    let rule = gcra(3, secs(1), 2);
    assert_eq!([come(&t, rule, 1).await, come(&t, rule, 1).await], [Allowed, Allowed]);
    assert_eq!(come(&t, rule, 1).await, RetryAfter(millis(334)));
    t.clock.advance(millis(333));
    assert_eq!(
        [come(&t, rule, 1).await, come(&t, rule, 2).await],
        [RetryAfter(millis(1)), RetryAfter(millis(334))]
    );
    t.clock.advance(millis(1));
    assert_eq!(come(&t, rule, 1).await, Allowed);
    assert_eq!(come(&t, rule, 1).await, RetryAfter(millis(333)));
    t.clock.advance(secs(60));
    assert_eq!([come(&t, rule, 2).await, come(&t, rule, 1).await], [Allowed, RetryAfter(millis(334))]);
}

/// S14: a rate of millions in a month is counted to the fraction of a millisecond.
pub(crate) async fn a_rate_is_exact_at_its_limits(t: Fixture) {
    let rule = gcra(999_999, secs(30 * 86_400), 1_000_000);
    assert_eq!(come(&t, rule, 1_000_000).await, Allowed);
    assert_eq!(come(&t, rule, 1).await, RetryAfter(millis(2_593)));
    assert_eq!(come(&t, rule, 1_000_000).await, RetryAfter(millis(2_592_002_593)));
    t.clock.advance(millis(2_592_002_592));
    assert_eq!(come(&t, rule, 1_000_000).await, RetryAfter(millis(1)));
    t.clock.advance(millis(1));
    assert_eq!(come(&t, rule, 1_000_000).await, Allowed);
}

/// S14: a clock that goes back lets no more pass in any window, and holds nobody up for more than a period besides.
pub(crate) async fn a_limiter_follows_a_clock_that_goes_back(t: Fixture) {
    let rule = log(2, secs(10));
    let start = t.clock.now();
    t.pass(10).await;
    assert_eq!(come(&t, rule, 1).await, Allowed);
    t.clock.set(start.after(secs(3)));
    assert_eq!([come(&t, rule, 1).await, come(&t, rule, 1).await], [Allowed, RetryAfter(secs(17))]);
    t.clock.set(start.after(secs(20)));
    assert_eq!([come(&t, rule, 2).await, come(&t, rule, 1).await], [Allowed, RetryAfter(secs(10))]);
    // More than a period ahead is nothing that the clock could have shown.
    t.clock.set(start.after(millis(9_999)));
    assert_eq!([come(&t, rule, 2).await, come(&t, rule, 1).await], [Allowed, RetryAfter(secs(10))]);
    let rule = gcra(1, secs(10), 1);
    assert_eq!([come(&t, rule, 1).await, come(&t, rule, 1).await], [Allowed, RetryAfter(secs(10))]);
    t.clock.set(start.after(millis(9_998)));
    assert_eq!(come(&t, rule, 1).await, RetryAfter(secs(10)));
    t.clock.advance(secs(10));
    assert_eq!(come(&t, rule, 1).await, Allowed);
}

/// S14: where callers use different rules for one key, as during a rolling deploy, each is held to its own rule at least.
pub(crate) async fn two_rules_for_one_key_both_limit(t: Fixture) {
    let (slow, fast) = (gcra(1, secs(60), 1), gcra(10, secs(1), 1));
    assert_eq!([come(&t, slow, 1).await, come(&t, fast, 1).await], [Allowed, RetryAfter(millis(100))]);
    assert_eq!(come(&t, slow, 1).await, RetryAfter(millis(100)), "it is no further ahead any more");
    let mut passed = 0;
    for _ in 0..500 {
        t.clock.advance(millis(10));
        for rule in [slow, fast] {
            passed += u32::from(come(&t, rule, 1).await.is_allowed());
        }
    }
    assert!((20..=50).contains(&passed), "the faster rule lets 50 pass in 5 s, and {passed} did");
    // No rule leaves an arrival so far ahead: it is void.
    let (hour, month) = (gcra(1, secs(3_600), 1), gcra(1, secs(30 * 86_400), 2));
    t.clock.advance(secs(60));
    let now = t.clock.now();
    t.clock.advance(secs(366 * 86_400));
    assert_eq!(come(&t, month, 2).await, Allowed);
    t.clock.set(now);
    assert_eq!(come(&t, hour, 1).await, Allowed);
}

/// S13: what is asked of a limiter has limits, and what breaks one counts nothing.
pub(crate) async fn limiters_have_limits(t: Fixture) {
    let long = "k".repeat(256);
    let month = secs(30 * 86_400);
    for op in [
        op("", 1, log(1, secs(1))),
        op(&long, 1, log(1, secs(1))),
        op("a\0b", 1, log(1, secs(1))),
        op("ana", 0, log(1, secs(1))),
        op("ana", 2, log(1, secs(1))),
        op("ana", 1, log(0, secs(1))),
        op("ana", 1, log(10_001, secs(1))),
        op("ana", 1, log(1, Duration::ZERO)),
        op("ana", 1, log(1, Duration::from_nanos(1))),
        op("ana", 1, log(1, month + millis(1))),
        op("ana", 1, gcra(0, secs(1), 1)),
        op("ana", 1, gcra(1_000_001, secs(1), 1)),
        op("ana", 1, gcra(1, secs(1), 0)),
        op("ana", 3, gcra(5, secs(1), 2)),
        LimitOp { name: String::new(), ..op("ana", 1, log(1, secs(1))) },
    ] {
        let refused = t.store.tool(&ToolOp::Limit(op.clone())).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{op:?}");
    }
    assert_eq!(come(&t, log(10_000, month), 10_000).await, Allowed);
    assert_eq!(come(&t, log(10_000, month), 1).await, RetryAfter(month));
}
