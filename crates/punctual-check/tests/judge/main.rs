//! Who judges the judge: thousands of clean histories without one false alarm, every kind of bug caught whenever it is
//! planted, and the core rules in agreement with a second, naive implementation.

mod bounds;
mod edited;
mod hand;
mod limits;
mod liveness;
mod naive;
mod replay;
mod simulator;
mod undone;

use std::{collections::BTreeSet, time::Duration};

use punctual_check::{
    History, Options, Verdict, Word,
    event::{Line, What},
    judge,
};
use simulator::Bug;

fn verdict(files: &[Vec<Line>]) -> Verdict {
    // Many times what a stall of the simulator takes.
    let options = Options { start_within: Some(Duration::from_secs(1)), ..Options::default() };
    judge(&History::of(files.iter().map(Vec::as_slice)), options)
}

#[test]
fn clean_histories_raise_no_alarm() {
    let (mut acked, mut retried, mut explained, mut kills, mut outages) = (0, 0, 0, 0, 0);
    for seed in 0..3_000 {
        let written = simulator::write(seed, None, 300);
        let verdict = verdict(&written.files);
        assert_eq!(verdict.verdict, Word::Valid, "seed {seed}: {verdict}");
        acked += verdict.acked;
        retried += verdict.retried;
        explained += verdict.duplicated.explained;
        kills += verdict.kills;
        outages += verdict.server_kills;
    }
    // None of them is clean because nothing happened.
    assert!(30_000 < acked && 3_000 < retried && 3_000 < explained && 3_000 < kills && 1_000 < outages);
    println!(
        "{acked} jobs, {retried} retries, {explained} explained duplicates, {kills} kills, {outages} outages"
    );
}

#[test]
fn every_planted_bug_is_caught() {
    for (kind, &(bug, rule)) in Bug::ALL.iter().enumerate() {
        let (mut planted, mut seed) = (0, 0);
        while planted < 25 {
            seed += 1;
            assert!(seed < 1_000, "{bug:?} was planted only {planted} times");
            let written = simulator::write(kind as u64 * 100_000 + seed, Some(bug), 300);
            let Some(place) = written.planted else { continue };
            planted += 1;
            let verdict = verdict(&written.files);
            assert_eq!(verdict.verdict, Word::Invalid, "missed {place}, seed {seed}");
            assert!(0 < verdict.count(rule), "{place}, seed {seed}: not by {rule} but {:?}", verdict.rules);
        }
    }
    println!("{} kinds of bug", Bug::ALL.len());
}

#[test]
fn a_naive_judge_agrees_on_the_core_rules() {
    let bugs = [
        None,
        Some(Bug::AckedThenGone),
        Some(Bug::WaitingNotAtRest),
        Some(Bug::ReservedButNeverEnqueued),
        Some(Bug::EarlyByOneMs),
        Some(Bug::ReservedWhileHeld),
        Some(Bug::StaleLeaseSettles),
        Some(Bug::StaleLeaseHeld),
        Some(Bug::FenceFell),
        Some(Bug::FenceReused),
    ];
    for bug in bugs {
        for seed in 0..40 {
            let written = simulator::write(7_000_000 + seed, bug, 120);
            let takes = |line: &Line| matches!(line.what, What::Invoke(punctual_check::event::Op::Take));
            if written.files.iter().flatten().any(takes) {
                continue; // a take reclaims without saying so, which the naive judge doesn't know
            }
            let naive = naive::core(&written.files);
            let verdict = verdict(&written.files);
            let of = |rule: &str| -> BTreeSet<_> {
                verdict.violations.iter().filter(|v| v.rule == rule).filter_map(|v| v.id).collect()
            };
            let context = format!("seed {seed}, {:?}: {verdict}", written.planted);
            assert_eq!(of("D1"), naive.lost, "lost, {context}");
            // Beyond reservations before `run_at`, the judge hears what callers asked for.
            assert!(of("T1").is_superset(&naive.early), "early, {context}");
            if matches!(bug, None | Some(Bug::EarlyByOneMs)) {
                assert_eq!(of("T1"), naive.early, "early, {context}");
            }
            assert_eq!(of("F1"), naive.fences, "fences, {context}");
            assert!(of("D2").is_superset(&naive.ghosts), "ghosts, {context}");
            assert!(naive.ghosts.is_empty() == of("D2").is_empty(), "ghosts, {context}");
            assert!(of("D6").is_superset(&naive.overlaps), "overlaps, {context}");
            // Numbers out of order make more of the judge's chain of runs than of the naive one's.
            if !matches!(bug, Some(Bug::FenceFell | Bug::FenceReused)) {
                assert!(naive.overlaps.is_empty() == of("D6").is_empty(), "overlaps, {context}");
            }
        }
    }
}

#[test]
fn a_history_that_proves_nothing_is_vacuous() {
    assert_eq!(verdict(&[]).verdict, Word::Vacuous);
    let mut files = simulator::write(1, None, 300).files;
    for file in &mut files {
        file.retain(|line| !matches!(line.what, What::Dump { .. }));
    }
    assert_eq!(verdict(&files).verdict, Word::Vacuous);
}

#[test]
fn files_survive_their_text_and_a_torn_last_line() {
    let written = simulator::write(3, None, 200);
    let dir = tempfile::tempdir().unwrap();
    for (i, file) in written.files.iter().enumerate() {
        let mut text: Vec<u8> = Vec::new();
        for line in file {
            serde_json::to_writer(&mut text, line).unwrap();
            text.push(b'\n');
        }
        if i == 0 {
            text.extend(br#"{"m":1,"w":1,"what":{"inv"#);
        }
        std::fs::write(dir.path().join(format!("{i}.ndjson")), text).unwrap();
    }
    let read = judge(&History::read(&[dir.path().to_owned()]).unwrap(), Options::default());
    let direct = verdict(&written.files);
    assert_eq!((read.torn, read.verdict), (1, Word::Valid));
    assert_eq!((read.acked, read.events, read.retried), (direct.acked, direct.events, direct.retried));

    std::fs::write(dir.path().join("x.ndjson"), "{\n{}\n").unwrap();
    let error = History::read(&[dir.path().to_owned()]).unwrap_err().to_string();
    assert!(error.contains("x.ndjson:1"), "{error}");
}
