//! The verdict on a drill of forwarding.

use std::collections::BTreeMap;

use punctual::{
    JobId, JobRecord, State, Timestamp,
    job::{Failure, Filter},
};
use serde_json::json;

use super::{
    QUEUE,
    scene::{Fault, KILLED, Scene},
};
use crate::{drill::Outcome, jobs::all};

/// How long before a fault something may have been on its way.
const BEFORE_US: u64 = 1_000_000;
/// How much later than all is made up for something may arrive that was there at a fault: the consumer connects again, too.
const AFTER_US: u64 = 3_000_000;

/// Judges and tells; answers whether all went as promised. `more` goes into the line for machines.
pub(super) async fn judge(scene: &Scene, to: &str, more: serde_json::Value) -> Outcome<bool> {
    let jobs = all(&scene.client, &Filter::all().queue(QUEUE)).await?;
    let arrivals = scene.arrivals.all();
    let mut broken: Vec<String> = Vec::new();
    let expected = scene.jobs as usize + scene.bad.len();
    if jobs.len() != expected {
        broken.push(format!("{} jobs are known of {expected}", jobs.len()));
    }
    let kills: Vec<_> = scene.faults.iter().filter(|fault| fault.name == KILLED).collect();
    let mut lost = 0;
    for job in &jobs {
        let has_arrived = arrivals.contains_key(&job.id.to_string());
        lost += u64::from(job.state == State::Done && !has_arrived);
        if let Some(problem) = problem(job, scene.bad.get(&job.id).copied(), has_arrived, &kills) {
            let at = |at: Option<Timestamp>| at.map(|at| scene.second(at.as_ms() * 1_000));
            let (due, ended) = (at(Some(job.run_at)), at(job.finished_at));
            broken.push(format!(
                "{problem}; due and ended at {due:?} and {ended:?} s, attempt {}",
                job.attempt
            ));
        }
    }
    let twice = Twice::of(scene, &arrivals);
    if !twice.unexplained.is_empty() {
        broken.push(format!(
            "nothing cut the confirms off of what arrived at {:?} s, and again",
            twice.unexplained
        ));
    }
    if twice.allowed < twice.extra {
        broken.push(format!("{} copies, at most {} can be explained", twice.extra, twice.allowed));
    }
    let audit = scene.client.audit(false, |_| ()).await?;
    if !audit.findings.is_empty() {
        broken.push(format!("the audit finds {:?}", audit.findings));
    }
    let late = lateness(scene, &jobs, &arrivals);
    let beside = Beside::of(scene);
    let dead = jobs.iter().filter(|job| job.state == State::Dead).count();
    eprintln!(
        "{} jobs to {to}: {} arrived, {lost} lost, {dead} dead with their reasons ({} were to be); {} copies of {} jobs (at most {} by \
         {} faults), {} handed out again by the other side itself",
        scene.jobs,
        arrivals.len(),
        scene.bad.len(),
        twice.extra,
        twice.jobs,
        twice.allowed,
        scene.faults.len(),
        scene.arrivals.handed_out_again(),
    );
    for (name, copies) in &twice.by {
        eprintln!("  {copies} copies by: {name}");
    }
    eprintln!("lateness outside of faults, from due to there: {late}");
    eprintln!("a queue beside, outside of faults: {}; during faults: {}", beside.outside, beside.during);
    for problem in broken.iter().take(10) {
        eprintln!("BROKEN {problem}");
    }
    let told: Vec<_> = scene.faults.iter().map(Fault::told).collect();
    println!(
        "{}",
        json!({
            "to": to, "jobs": scene.jobs, "arrived": arrivals.len(), "lost": lost, "dead": dead, "copies": twice.extra,
            "copies_max": twice.allowed, "late": late.json(), "beside": beside.outside.json(),
            "beside_during_faults": beside.during.json(), "faults": told, "broken": broken.len(), "more": more,
        })
    );
    Ok(broken.is_empty())
}

/// What is wrong with the end of a job, if anything is. `words`: those that it must be dead with.
fn problem(job: &JobRecord, words: Option<&str>, has_arrived: bool, kills: &[&Fault]) -> Option<String> {
    let last = job.failures.last();
    match (words, job.state) {
        (None, State::Done) if has_arrived => None,
        (None, State::Done) => Some(format!("{} is done and never arrived", job.id)),
        (Some(words), State::Dead)
            if !has_arrived && last.is_some_and(|last| is_refused(last, words, kills)) =>
        {
            None
        }
        (_, state) => {
            let error = last.map_or("", |last| &last.error);
            Some(format!("{} is {state:?} ({error:?}), arrived: {has_arrived}", job.id))
        }
    }
}

/// Whether an attempt, the last one of a job that can't be handed over, ended as it should: in the other side's words, or with
/// its forwarder in a kill, which counts as an attempt as well.
fn is_refused(last: &Failure, words: &str, kills: &[&Fault]) -> bool {
    let (started, ended) = (last.started_ms * 1_000, last.ended_ms * 1_000);
    let was_killed = || kills.iter().any(|kill| started <= kill.end && kill.begin <= ended);
    last.error.starts_with(words) || last.error == "lease expired" && was_killed()
}

/// What arrived more than once.
struct Twice {
    jobs: u64,
    extra: u64,
    allowed: u64,
    /// When, in seconds.
    unexplained: Vec<f64>,
    by: BTreeMap<String, u64>,
}

impl Twice {
    fn of(scene: &Scene, arrivals: &BTreeMap<String, Vec<u64>>) -> Self {
        let allowed = scene.faults.iter().map(|fault| fault.twice_max).sum();
        let mut twice = Self { jobs: 0, extra: 0, allowed, unexplained: Vec::new(), by: BTreeMap::new() };
        for times in arrivals.values().filter(|times| 1 < times.len()) {
            twice.jobs += 1;
            twice.extra += times.len() as u64 - 1;
            // A copy was made since the one before it got no confirm, which must have been on its way at a fault.
            for before in &times[..times.len() - 1] {
                let is_by = |fault: &&Fault| 0 < fault.twice_max && fault.met(*before);
                match scene.faults.iter().find(is_by) {
                    Some(fault) => *twice.by.entry(fault.name.clone()).or_default() += 1,
                    None => twice.unexplained.push(scene.second(*before)),
                }
            }
        }
        twice
    }
}

impl Fault {
    /// Whether it may have met what was on its way then.
    const fn met(&self, us: u64) -> bool {
        self.begin.saturating_sub(BEFORE_US) <= us && us <= self.recovered + AFTER_US
    }

    fn told(&self) -> serde_json::Value {
        json!({
            "name": self.name, "begin_us": self.begin, "seconds": (self.end - self.begin) as f64 / 1e6,
            "recovery_seconds": self.recovered.saturating_sub(self.end) as f64 / 1e6, "copies_max": self.twice_max,
        })
    }
}

/// Whether a job that was due then has nothing to do with any fault.
fn is_outside(scene: &Scene, due_us: u64) -> bool {
    scene.faults.iter().all(|fault| due_us + BEFORE_US / 10 < fault.begin || fault.recovered < due_us)
}

/// Of some jobs, how late they were.
struct Late(Vec<u64>);

impl Late {
    fn of(late: impl Iterator<Item = u64>) -> Self {
        let mut late: Vec<_> = late.collect();
        late.sort_unstable();
        Self(late)
    }

    /// In milliseconds.
    fn quantile(&self, q: f64) -> f64 {
        let at = (self.0.len() as f64 * q) as usize;
        self.0.get(at.min(self.0.len().saturating_sub(1))).map_or(0.0, |us| *us as f64 / 1e3)
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "jobs": self.0.len(), "p50_ms": self.quantile(0.5), "p99_ms": self.quantile(0.99), "max_ms": self.quantile(1.0),
        })
    }
}

impl std::fmt::Display for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [half, most, all] = [0.5, 0.99, 1.0].map(|q| self.quantile(q));
        write!(f, "p50 {half:.1} ms, p99 {most:.1} ms, at most {all:.1} ms, of {} jobs", self.0.len())
    }
}

fn lateness(scene: &Scene, jobs: &[JobRecord], arrivals: &BTreeMap<String, Vec<u64>>) -> Late {
    let good = jobs.iter().filter(|job| is_good(scene, job.id));
    Late::of(good.filter_map(|job| {
        // A failure would have moved it.
        let due = job.run_at.as_ms() * 1_000;
        let first = arrivals.get(&job.id.to_string())?.first()?;
        (job.attempt == 1 && is_outside(scene, due)).then(|| first.saturating_sub(due))
    }))
}

fn is_good(scene: &Scene, id: JobId) -> bool {
    !scene.bad.contains_key(&id)
}

/// The queue beside.
struct Beside {
    outside: Late,
    during: Late,
}

impl Beside {
    fn of(scene: &Scene) -> Self {
        let (outside, during): (Vec<_>, Vec<_>) =
            scene.beside().into_iter().partition(|(due, _)| is_outside(scene, *due));
        let late = |some: Vec<(u64, u64)>| Late::of(some.into_iter().map(|(_, late)| late));
        Self { outside: late(outside), during: late(during) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused_by(error: &str, (started_ms, ended_ms): (u64, u64), kills: &[&Fault]) -> bool {
        let last =
            Failure { attempt: 2, started_ms, ended_ms, worker: "forwarder".into(), error: error.into() };
        is_refused(&last, "422 Unprocessable Entity", kills)
    }

    #[test]
    fn a_job_that_cannot_be_handed_over_is_dead_in_the_other_sides_words() {
        assert!(is_refused_by("422 Unprocessable Entity: no such customer", (796, 800), &[]));
        assert!(!is_refused_by("500 Internal Server Error", (796, 800), &[]));
    }

    #[test]
    fn a_last_attempt_may_end_with_its_forwarder() {
        let kill = Fault {
            name: KILLED.to_owned(),
            begin: 800_100,
            end: 804_000,
            recovered: 3_804_000,
            twice_max: 256,
        };
        let is_by = |run, kills: &[&Fault]| is_refused_by("lease expired", run, kills);
        assert!(is_by((796, 2_798), &[&kill]));
        assert!(is_by((804, 2_806), &[&kill]), "reserved while it was killed");
        assert!(!is_by((796, 2_798), &[]), "nobody was killed");
        assert!(!is_by((805, 2_807), &[&kill]), "it began later");
        assert!(!is_by((700, 800), &[&kill]), "it ended before");
    }
}
