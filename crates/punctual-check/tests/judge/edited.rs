//! A clean history with a kill of the server in it, edited behind that kill as if the store had gone wrong.

use std::collections::BTreeMap;

use punctual::{JobId, State};
use punctual_check::{
    Word,
    event::{Answer, CallId, Ended, Hex, LeaseId, Line, Op, Reservation, Reservations, Said, What},
};

use super::{simulator, verdict};

const MS: u64 = 1_000_000;
/// Jobs that each edit is about.
const JOBS: usize = 100;
/// Longer than a lease of the simulator, in nanoseconds.
const AFTER_ITS_TIME: u64 = 60 * MS;

/// A job that was reserved once, behind the kill, and done.
struct Plain {
    row: Reservation,
    now: u64,
    /// Where it was reserved and settled: a file.
    file: usize,
    /// When it was handed out.
    got: u64,
}

/// A history, and jobs in it that ran once behind the kill of the server, and nobody acted upon.
fn history(seed: u64) -> (Vec<Vec<Line>>, Vec<Plain>) {
    let files = simulator::write_outage(seed, 300);
    let killed = files.iter().flatten().find(|line| matches!(line.what, What::ServerKilled { .. }));
    let killed = killed.expect("the server is killed").m;
    let mut runs: BTreeMap<JobId, Vec<Plain>> = BTreeMap::new();
    let mut others = Vec::new();
    for (file, lines) in files.iter().enumerate() {
        for line in lines {
            match &line.what {
                What::Ok(Answer::Reserve(batch)) => {
                    for row in &batch.jobs {
                        let run = Plain { row: *row, now: batch.now, file, got: line.m };
                        runs.entry(row.id).or_default().push(run);
                    }
                    others.extend(batch.reclaimed.iter().map(|(lease, _)| lease.0));
                }
                What::Invoke(Op::Act { targets, .. }) => others.extend(targets.iter().flatten()),
                What::Invoke(Op::Settle { runs, .. }) => {
                    others.extend(runs.iter().filter(|run| run.verdict != Said::Ack).map(|run| run.id));
                }
                _ => {}
            }
        }
    }
    for id in &others {
        runs.remove(id);
    }
    let behind = |runs: &Vec<Plain>| runs.len() == 1 && killed + 100 * MS < runs[0].got;
    let mut plain: Vec<Plain> = runs.into_values().filter(behind).flatten().collect();
    // A few have no slot to run in yet.
    let is_start = |line: &Line, of: JobId| matches!(line.what, What::Start { id, .. } if id == of);
    plain.retain(|job| files[job.file].iter().any(|line| is_start(line, job.row.id)));
    assert_eq!(verdict(&files).verdict, Word::Valid, "{}", verdict(&files));
    (files, plain)
}

/// Edits so many jobs, in as many histories as they are in: each edit is noticed, by this rule.
fn edit(rule: &str, of: impl Fn(&mut Vec<Vec<Line>>, &Plain)) {
    let mut edited = 0;
    for seed in 0.. {
        assert!(seed < 400, "only {edited} jobs ran once behind the kill");
        let (mut files, jobs) = history(seed);
        for job in &jobs {
            of(&mut files, job);
        }
        let verdict = verdict(&files);
        let word = if jobs.is_empty() { Word::Valid } else { Word::Invalid };
        assert_eq!(verdict.verdict, word, "seed {seed}: {verdict}");
        assert!(jobs.len() as u64 <= verdict.count(rule), "seed {seed}: {verdict}");
        edited += jobs.len();
        if JOBS <= edited {
            return;
        }
    }
}

/// Adds a call with its answer to a file.
fn call(file: &mut Vec<Line>, m: u64, op: Op, answer: Answer) {
    let n = 1_000_000 + file.len() as u64;
    for (m, what) in [(m, What::Invoke(op)), (m + 100, What::Ok(answer))] {
        file.push(Line { m, w: m / MS, n, what });
    }
}

/// Takes away what says that the job was settled.
fn unsettle(file: &mut Vec<Line>, id: JobId) {
    let settles =
        |line: &Line| matches!(&line.what, What::Invoke(Op::Settle { runs, .. }) if runs[0].id == id);
    let calls: Vec<u64> = file.iter().filter(|line| settles(line)).map(|line| line.n).collect();
    assert_ne!(calls.len(), 0);
    file.retain(|line| !calls.contains(&line.n));
}

fn settle(file: &mut Vec<Line>, m: u64, id: JobId, fence: u64) {
    let runs = vec![Ended { id, fence, verdict: Said::Ack }];
    let answer = Answer::Settle { states: vec![Some(State::Done)], away: vec![], then: None };
    call(file, m, Op::Settle { runs, then: None }, answer);
}

/// Hands each job out again, so much later, to somebody else who ends it; nobody was told what became of the first lease.
fn handed_out_again(after: u64) {
    edit("D6", |files, Plain { row, now, file, got }| {
        unsettle(&mut files[*file], row.id);
        let other = (file + 1) % 3;
        let (m, now) = (got + after, now + after / MS);
        let again = Reservation { fence: row.fence + 1, until: now + row.lasts, ..*row };
        let batch = Reservations { now, jobs: vec![again], reclaimed: vec![] };
        let op = Op::Reserve { call: CallId(Hex(99), again.fence) };
        call(&mut files[other], m, op, Answer::Reserve(batch));
        let what = What::Start { id: row.id, fence: again.fence, sum: row.sum };
        files[other].push(Line { m: m + 200, w: m / MS, n: 0, what });
        settle(&mut files[other], m + 300, row.id, again.fence);
    });
}

#[test]
fn behind_a_kill_of_the_server_a_second_lease_at_once_is_none_that_the_kill_explains() {
    handed_out_again(1_000);
}

#[test]
fn behind_a_kill_of_the_server_a_lease_that_had_lapsed_is_reclaimed_by_somebody_who_is_told() {
    handed_out_again(AFTER_ITS_TIME);
}

/// Tells the holder of each lease, so much after it got it, that it is lost; it ends the job all the same.
fn lost_for_no_reason(after: u64) {
    edit("S8", |files, Plain { row, file, got, .. }| {
        let file = &mut files[*file];
        unsettle(file, row.id);
        let leases = vec![LeaseId(row.id, row.fence)];
        call(file, got + after, Op::Extend { leases, company: vec![] }, Answer::Extend(vec![Some(false)]));
        settle(file, got + after + 1_000, row.id, row.fence);
    });
}

#[test]
fn behind_a_kill_of_the_server_a_lease_is_lost_for_a_reason() {
    lost_for_no_reason(1_000);
    lost_for_no_reason(AFTER_ITS_TIME);
}

#[test]
fn starts_that_come_much_later_are_late_though_all_come_in_order() {
    edit("D8", |files, Plain { row, .. }| {
        let starts = |line: &&mut Line| matches!(&line.what, What::Start { id, .. } if *id == row.id);
        for line in files.iter_mut().flatten().filter(starts) {
            (line.m, line.w) = (line.m + 170_000 * MS, line.w + 170_000);
        }
    });
}

#[test]
fn jobs_that_wait_at_rest_were_left_over() {
    edit("D8", |files, Plain { row, file, .. }| {
        unsettle(&mut files[*file], row.id);
        let starts = |line: &Line| matches!(&line.what, What::Start { id, .. } if *id == row.id);
        for file in &mut files[..] {
            file.retain(|line| !starts(line));
        }
        for line in files.iter_mut().flatten() {
            match &mut line.what {
                What::Ok(Answer::Reserve(batch)) => batch.jobs.retain(|other| other.id != row.id),
                What::Dump { jobs, .. } => {
                    jobs.iter_mut().filter(|job| job.id == row.id).for_each(|job| job.state = State::Waiting);
                }
                _ => {}
            }
        }
    });
}
