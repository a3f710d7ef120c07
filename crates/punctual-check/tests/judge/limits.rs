//! L1: how many jobs of a concurrency key, or of a group, run at once.

use punctual::{State, job::Concurrency};
use punctual_check::{
    Kept, Moved, Verdict, Word,
    event::{CallId, Deed, Ended, Hex, Op, Said, Wanted, What},
};

use super::hand::{File, LEASE_MS, SECOND, id, verdict};

#[track_caller]
fn breaks(told: &Verdict, is_so: bool) {
    let word = if is_so { Word::Invalid } else { Word::Valid };
    assert_eq!((told.verdict, told.count("L1")), (word, u64::from(is_so)), "{told}");
}

fn key(limit: u32) -> impl Fn(&mut Wanted) {
    move |job| job.concurrency = Some(Concurrency { key: "k".to_owned(), limit })
}

fn group(name: &str) -> impl Fn(&mut Wanted) {
    move |job| job.group = Some(name.to_owned())
}

/// Jobs that run beside each other, the first for 10 s, each other one from a second later on and for a second less.
fn beside(jobs: &[&dyn Fn(&mut Wanted)], note: Option<What>) -> Verdict {
    let mut file = File::new("all", 9);
    if let Some(what) = note {
        file.note(0.5, what);
    }
    let numbered = || (1_u32..).zip(jobs);
    for (n, job) in numbered() {
        file.enqueue_as(1.0, n.into(), 1.0, job);
    }
    for (n, _) in numbered() {
        file.begin(1.0 + f64::from(n), n.into(), n.into());
    }
    for (n, _) in numbered() {
        file.end(13.0 - f64::from(n), n.into(), n.into());
    }
    let done: Vec<_> = numbered().map(|(n, _)| (n.into(), State::Done)).collect();
    file.dump(20.0, &done);
    verdict(&[&file])
}

#[test]
fn more_jobs_of_a_concurrency_key_than_may_break_its_limit() {
    breaks(&beside(&[&key(1)], None), false);
    breaks(&beside(&[&key(1), &key(1)], None), true);
    breaks(&beside(&[&key(2), &key(2)], None), false);
    breaks(&beside(&[&key(2), &key(2), &key(2)], None), true);
    // Which of them started last is not known to the judge.
    breaks(&beside(&[&key(1), &key(2)], None), false);
    // A key is one of its queue and group.
    let elsewhere = |job: &mut Wanted| {
        key(1)(job);
        "p".clone_into(&mut job.queue);
    };
    let grouped = |job: &mut Wanted| {
        key(1)(job);
        group("g")(job);
    };
    breaks(&beside(&[&key(1), &elsewhere, &grouped], None), false);
    breaks(&beside(&[&key(1), &grouped, &grouped], None), true);
}

#[test]
fn an_act_ends_a_run_only_after_its_lease() {
    for (cancelled_at, is_broken) in [(5.0, true), (60.0, false)] {
        let mut file = File::new("all", 9);
        file.enqueue_as(1.0, 1, 1.0, key(1));
        file.enqueue_as(1.1, 2, 1.1, key(1));
        file.begin(2.0, 1, 7);
        file.act(cancelled_at, 1, Deed::Cancel);
        file.begin(cancelled_at + 1.0, 2, 8);
        file.end(cancelled_at + 2.0, 2, 8);
        file.dump(100.0, &[(1, State::Cancelled), (2, State::Done)]);
        let told = verdict(&[&file]);
        assert_eq!(told.count("L1"), u64::from(is_broken), "{told}");
    }
}

#[test]
fn more_jobs_of_a_group_than_was_noted_break_its_limit() {
    let limit = |queue: &str| Some(What::GroupLimit { queue: queue.to_owned(), running: 2 });
    let (g, h) = (group("g"), group("h"));
    breaks(&beside(&[&g, &g, &h, &h], limit("q")), false);
    breaks(&beside(&[&g, &g, &h, &g], limit("q")), true);
    breaks(&beside(&[&g, &g, &g], None), false);
    breaks(&beside(&[&g, &g, &g], limit("p")), false);
    let told = beside(&[&g, &g, &h, &key(3)], limit("q"));
    assert_eq!(told.groups, Kept { number: 2, full: 1, at_once: 2 });
    assert_eq!(told.keys, Kept { number: 1, full: 0, at_once: 1 });
}

/// Two jobs of a key with limit 1, the second from 30 s on, and this about the first, which began at 2 s.
fn second_after(more: impl Fn(&mut File)) -> Verdict {
    let mut file = File::new("all", 9);
    file.enqueue_as(1.0, 1, 1.0, key(1));
    file.enqueue_as(1.0, 2, 1.0, key(1));
    file.begin(2.0, 1, 1);
    more(&mut file);
    file.begin(30.0, 2, 2);
    file.end(40.0, 2, 2);
    file.dump(50.0, &[(1, State::Done), (2, State::Done)]);
    verdict(&[&file])
}

#[test]
fn a_run_counts_until_a_call_that_may_have_ended_it() {
    breaks(&second_after(|file| file.end(29.0, 1, 1)), false);
    breaks(&second_after(|file| file.end(31.0, 1, 1)), true);
    // Its end was not answered.
    let settle = || {
        let runs = vec![Ended { id: id(1), fence: 1, verdict: Said::Ack }];
        Op::Settle { runs, then: None }
    };
    breaks(&second_after(|file| file.lost(29.0, settle())), false);
    // Somebody who does not tell may have taken it back, once it had lapsed.
    let lapsed = 2.0 + LEASE_MS as f64 / 1_000.0;
    for (at, is_broken) in [(lapsed - 1.0, true), (lapsed + 1.0, false)] {
        let told = second_after(|file| {
            // Answered by its repetition; so it has happened by then.
            let call = CallId(Hex(8), (at * SECOND as f64) as u64);
            file.lost(at, Op::Reserve { call });
            let (_, batch) = File::batch(at, vec![], vec![]);
            file.call(at + 0.5, Op::Reserve { call }, punctual_check::event::Answer::Reserve(batch));
            file.end(31.0, 1, 1);
        });
        assert_eq!(told.count("L1"), u64::from(is_broken), "{told}");
    }
}

#[test]
fn a_change_met_what_lived_through_it_and_was_joined() {
    let run = |through: bool, joined: bool| {
        let mut file = File::new("all", 9);
        file.enqueue_as(1.0, 1, 1.0, key(1));
        let first = if through { 6.0 } else { 2.0 };
        file.begin(first, 1, 1);
        file.end(first + 0.5, 1, 1);
        file.note(4.0, What::Changed { since: 3 * SECOND, to: "8 shards".to_owned() });
        file.enqueue_as(if joined { 5.0 } else { 7.0 }, 2, 1.0, key(1));
        file.begin(8.0, 2, 2);
        file.end(9.0, 2, 2);
        file.dump(20.0, &[(1, State::Done), (2, State::Done)]);
        let told = verdict(&[&file]);
        breaks(&told, false);
        told.moved
    };
    for (through, joined, keys) in [(true, true, 1), (true, false, 0), (false, true, 0)] {
        let told = run(through, joined);
        assert_eq!(told, [Moved { to: "8 shards".to_owned(), keys, groups: 0 }], "{through} {joined}");
    }
}

#[test]
fn a_job_is_known_by_the_id_that_its_enqueue_answers() {
    let told = beside(&[&|job: &mut Wanted| job.id = id(99)], None);
    breaks(&told, false);
    assert_eq!((told.attempt, told.acked, told.ok), (1, 1, 1));
}
