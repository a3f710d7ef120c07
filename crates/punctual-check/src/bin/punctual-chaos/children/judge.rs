//! The judge of the drill: each job is done by a run that came to its end, each other run has a kill or its handler as the reason, and
//! nothing of a run goes on once the next one of its job has begun.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    notes::{Note, Step},
    {FLAKY, FLAKY_ERROR, SLEEPY},
};

/// What a job says of an attempt whose lease expired.
const EXPIRED: &str = "lease expired";
/// What it says of one whose child was killed.
const CHILD_KILLED: &str = "the child ended: signal: 9";
/// How many failed attempts a job remembers.
const FAILURES_MAX: usize = 8;
/// Expired leases in a row that end a job.
const CRASHES: usize = 3;

/// A job at rest.
#[derive(Clone, Debug, Default)]
pub(super) struct AtRest {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) is_done: bool,
    /// Dead, since three workers in a row were killed with it.
    pub(super) is_crashed: bool,
    pub(super) attempt: u32,
    pub(super) failures: Vec<Failed>,
    /// Whether its result is what its handler returned for it.
    pub(super) has_its_result: bool,
}

/// A failed attempt.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) attempt: u32,
    pub(super) worker: String,
    pub(super) error: String,
}

/// What the nemesis did.
#[derive(Clone, Debug, Default)]
pub(super) struct Kills {
    pub(super) workers: BTreeSet<String>,
    /// Runs that were cut short by the end of their child: the last notes of them.
    pub(super) runs: Vec<Note>,
    /// Jobs that one worker runs at once.
    pub(super) slots: usize,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) done: usize,
    pub(super) crashed: usize,
    /// Attempts that failed because their child was killed, …
    pub(super) by_child: usize,
    /// … because their worker was, …
    pub(super) by_worker: usize,
    /// … and because their handler said so.
    pub(super) by_handler: usize,
    /// A line each.
    pub(super) broken: Vec<String>,
}

/// Judges all jobs at rest.
pub(super) fn judge(jobs: &[AtRest], notes: &[Note], kills: &Kills) -> Findings {
    let (mut found, mut by_job) = (Findings::default(), BTreeMap::<&str, Vec<&Note>>::new());
    let mut fences = BTreeSet::new();
    for note in notes {
        by_job.entry(&note.job).or_default().push(note);
        if note.step == Step::Begin && !fences.insert((&note.job, note.fence)) {
            found.broken.push(format!("{} began twice under fence {}", note.job, note.fence));
        }
    }
    let mut expired = BTreeMap::<&str, usize>::new();
    for job in jobs {
        let notes = by_job.remove(&*job.id).unwrap_or_default();
        ends(job, &notes, &mut found);
        runs(job, notes, &mut found);
        for failed in &job.failures {
            match failed.error.as_str() {
                EXPIRED => {
                    *expired.entry(&failed.worker).or_default() += 1;
                    found.by_worker += 1;
                }
                FLAKY_ERROR if job.kind == FLAKY && failed.attempt == 1 => found.by_handler += 1,
                error if error.starts_with(CHILD_KILLED) && is_cut(job, failed, kills) => found.by_child += 1,
                error => {
                    let Failed { attempt, worker, .. } = failed;
                    found.broken.push(format!(
                        "attempt {attempt} of {} in {worker} failed, and no kill explains it: {error}",
                        job.id
                    ));
                }
            }
        }
    }
    for (worker, n) in expired {
        let most = if kills.workers.contains(worker) { kills.slots } else { 0 };
        if most < n {
            found.broken.push(format!("{n} leases of {worker} expired, but the kills explain {most}"));
        }
    }
    for job in by_job.into_keys() {
        found.broken.push(format!("{job} ran, and nobody enqueued it"));
    }
    for run in &kills.runs {
        cut(run, jobs, notes, &mut found);
    }
    found
}

/// How a job ended.
fn ends(job: &AtRest, notes: &[&Note], found: &mut Findings) {
    found.done += usize::from(job.is_done);
    let id = &job.id;
    let expired = job.failures.iter().rev().take_while(|failed| failed.error == EXPIRED).count();
    if job.is_crashed && CRASHES <= expired {
        found.crashed += 1;
    } else if !job.is_done {
        found.broken.push(format!("{id} is not done, but {job:?}"));
        return;
    } else if !job.has_its_result {
        found.broken.push(format!("{id} has not the result that its handler returned"));
    }
    let has_ended = |note: &&Note| note.step == Step::End && note.attempt == job.attempt;
    if job.is_done && !notes.iter().any(has_ended) {
        found.broken.push(format!("{id} is done, and its handler never came to its end"));
    }
    let failed = job.attempt as usize - usize::from(job.is_done);
    if job.failures.len() < FAILURES_MAX && failed != job.failures.len() {
        found.broken.push(format!("{id} failed {failed} times, and knows {} of them", job.failures.len()));
    }
}

/// The runs of a job, one after the other.
fn runs(job: &AtRest, mut notes: Vec<&Note>, found: &mut Findings) {
    notes.sort_by_key(|note| note.at);
    for pair in notes.windows(2) {
        if pair[1].fence < pair[0].fence {
            found.broken.push(format!(
                "{} went on under fence {} after fence {} had begun",
                job.id, pair[1].fence, pair[0].fence
            ));
        }
    }
    let mut begun = BTreeMap::<u32, usize>::new();
    for note in notes.iter().filter(|note| note.step == Step::Begin) {
        *begun.entry(note.attempt).or_default() += 1;
    }
    for (attempt, n) in begun {
        // A snooze counts no attempt.
        let most = if job.kind == SLEEPY { 2 } else { 1 };
        if most < n || job.attempt < attempt {
            found.broken.push(format!(
                "attempt {attempt} of {} began {n} times, and it is at {}",
                job.id, job.attempt
            ));
        }
    }
}

fn is_cut(job: &AtRest, failed: &Failed, kills: &Kills) -> bool {
    kills
        .runs
        .iter()
        .any(|run| (&run.job, run.attempt, &run.worker) == (&job.id, failed.attempt, &failed.worker))
}

/// A run that was cut short failed, and did nothing afterwards.
fn cut(run: &Note, jobs: &[AtRest], notes: &[Note], found: &mut Findings) {
    let Note { job, fence, attempt, .. } = run;
    if notes.iter().any(|note| note.step == Step::End && (&note.job, note.fence) == (job, *fence)) {
        found
            .broken
            .push(format!("{job} came to its end under fence {fence}, of which the child was killed before"));
    }
    let of_job = jobs.iter().find(|other| other.id == *job);
    let is_known = |of: &AtRest| {
        FAILURES_MAX <= of.failures.len() || of.failures.iter().any(|failed| failed.attempt == *attempt)
    };
    if !of_job.is_some_and(is_known) {
        found.broken.push(format!("attempt {attempt} of {job} did not fail, and its child was killed"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(step: Step, fence: u64, attempt: u32, at: u64) -> Note {
        Note { step, job: "a".to_owned(), fence, attempt, pid: 7, worker: "w1".to_owned(), at }
    }

    fn failed(error: &str) -> Failed {
        Failed { attempt: 1, worker: "w1".to_owned(), error: error.to_owned() }
    }

    /// A job whose first attempt failed, and whose second is done.
    fn job(error: &str) -> AtRest {
        AtRest {
            id: "a".to_owned(),
            kind: "plain".to_owned(),
            is_done: true,
            attempt: 2,
            failures: vec![failed(error)],
            has_its_result: true,
            ..AtRest::default()
        }
    }

    fn notes() -> Vec<Note> {
        vec![note(Step::Begin, 1, 1, 10), note(Step::Begin, 2, 2, 20), note(Step::End, 2, 2, 30)]
    }

    fn kills(worker: bool, run: bool) -> Kills {
        Kills {
            workers: worker.then(|| "w1".to_owned()).into_iter().collect(),
            runs: run.then(|| note(Step::Begin, 1, 1, 10)).into_iter().collect(),
            slots: 1,
        }
    }

    fn broken(jobs: &[AtRest], notes: &[Note], kills: &Kills) -> String {
        judge(jobs, notes, kills).broken.join("\n")
    }

    #[test]
    fn a_kill_explains_an_attempt() {
        let found = judge(&[job(EXPIRED)], &notes(), &kills(true, false));
        assert_eq!(found, Findings { done: 1, by_worker: 1, ..Findings::default() });
        let found = judge(&[job("the child ended: signal: 9 (SIGKILL)")], &notes(), &kills(false, true));
        assert_eq!(found, Findings { done: 1, by_child: 1, ..Findings::default() });
    }

    #[test]
    fn an_attempt_without_a_kill_is_unexplained() {
        for error in [EXPIRED, CHILD_KILLED, "timeout after 5s"] {
            let what = broken(&[job(error)], &notes(), &kills(false, false));
            assert!(what.contains("explain"), "{error}: {what}");
        }
        // One lease for each slot of a killed worker.
        let two = AtRest { attempt: 3, failures: vec![failed(EXPIRED), failed(EXPIRED)], ..job("") };
        let what = broken(&[two], &notes(), &kills(true, false));
        assert!(what.contains("2 leases of w1 expired, but the kills explain 1"), "{what}");
    }

    #[test]
    fn a_job_is_done_by_a_run_that_came_to_its_end() {
        let what = broken(&[job(EXPIRED)], &notes()[..2], &kills(true, false));
        assert!(what.contains("never came to its end"), "{what}");
        let other = AtRest { has_its_result: false, ..job(EXPIRED) };
        assert!(
            broken(&[other], &notes(), &kills(true, false))
                .contains("not the result that its handler returned")
        );
        let waits = AtRest { is_done: false, ..job(EXPIRED) };
        assert!(broken(&[waits], &notes(), &kills(true, false)).contains("is not done"));
    }

    #[test]
    fn a_cut_run_failed_and_does_nothing_more() {
        let silent = AtRest { attempt: 1, failures: Vec::new(), ..job("") };
        let ran = [note(Step::Begin, 1, 1, 10), note(Step::End, 1, 1, 15)];
        let what = broken(&[silent], &ran, &kills(false, true));
        assert!(what.contains("did not fail") && what.contains("was killed before"), "{what}");
    }

    #[test]
    fn runs_of_a_job_follow_each_other() {
        let mut notes = notes();
        notes.push(note(Step::Tick, 1, 1, 25));
        let what = broken(&[job(EXPIRED)], &notes, &kills(true, false));
        assert!(what.contains("went on under fence 1 after fence 2 had begun"), "{what}");
        let twice = [note(Step::Begin, 1, 2, 10), note(Step::Begin, 2, 2, 20), note(Step::End, 2, 2, 30)];
        assert!(broken(&[job(EXPIRED)], &twice, &kills(true, false)).contains("began 2 times"));
        let again = [note(Step::Begin, 2, 1, 10), note(Step::Begin, 2, 2, 20), note(Step::End, 2, 2, 30)];
        assert!(broken(&[job(EXPIRED)], &again, &kills(true, false)).contains("began twice under fence 2"));
    }
}
