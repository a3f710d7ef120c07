//! Tells a run to a reader: the plan, then what happened to the jobs that matter, a line for each event.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use punctual::JobId;
use punctual_check::event::{Accepted, Answer, Effect, LeaseId, Op, Reservations, What};

use crate::{Plan, Run, log::Entry};

/// Most jobs of a story; others are left out if a rule names the guilty ones.
const JOBS_MAX: usize = 8;

/// Tells a run of a plan.
pub fn tell(plan: &Plan, run: &Run) -> String {
    let mut story = String::new();
    // Writing to a text does not fail.
    let _ = tell_plan(plan, &mut story);
    let _ = Telling::of(run).tell(run, &mut story);
    let _ = tell_end(run, &mut story);
    story
}

fn tell_plan(plan: &Plan, story: &mut String) -> std::fmt::Result {
    let Plan {
        seed,
        chaos_ms,
        workers,
        clients,
        jobs,
        acts,
        ends,
        faults,
        group_limit,
        publications,
        room,
        client_crashes,
        schedule,
        outages,
        steps,
    } = plan;
    writeln!(story, "seed {seed}: {chaos_ms} ms of harm, clocks of clients {clients:?} ms off")?;
    for (n, worker) in workers.iter().enumerate() {
        writeln!(story, "  w{n}: {worker:?}")?;
    }
    for job in jobs {
        let mut options = String::new();
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = write!(options, ", {name} {value}");
            }
        };
        option("due after ms", (0 < job.delay_ms).then(|| job.delay_ms.to_string()));
        option("attempts", (job.max_attempts != 20).then(|| job.max_attempts.to_string()));
        option("timeout ms", (job.timeout_ms != 300_000).then(|| job.timeout_ms.to_string()));
        option("group", job.group.map(|group| group.to_string()));
        option("concurrency", job.concurrency.map(|key| format!("{key:?}")));
        option("unique", job.unique.map(|unique| format!("{unique:?}")));
        option("expires after ms", job.expires_ms.map(|ms| ms.to_string()));
        option("caller leaves after ms", job.leaves_ms.map(|ms| ms.to_string()));
        writeln!(story, "  j{}: at {} ms by c{}, {:?}{options}", job.n, job.at_ms, job.client, job.handler)?;
    }
    for act in acts {
        writeln!(story, "  at {} ms c{}: {:?} j{}", act.at_ms, act.client, act.deed, act.job)?;
    }
    for end in ends {
        let what = if end.crashes { "crashes" } else { "is asked to end" };
        writeln!(
            story,
            "  at {} ms w{} {what}, {} ms later the next one starts",
            end.at_ms, end.worker, end.down_ms
        )?;
    }
    for crash in client_crashes {
        writeln!(story, "  at {} ms c{} crashes, and starts again", crash.at_ms, crash.client)?;
    }
    for outage in outages {
        let what = if outage.hangs { "hangs" } else { "is away" };
        writeln!(story, "  at {} ms the store {what} for {} ms", outage.at_ms, outage.lasts_ms)?;
    }
    for step in steps {
        writeln!(story, "  at {} ms the clock steps by {} ms", step.at_ms, step.by_ms)?;
    }
    writeln!(story, "  {faults:?}")?;
    if let Some(limit) = group_limit {
        writeln!(story, "  at most {limit} of a group at once")?;
    }
    for publication in publications {
        writeln!(story, "  j{}: published, {publication:?}", publication.n)?;
    }
    if let Some(room) = room {
        writeln!(story, "  at most {room} jobs in the second queue of the topic")?;
    }
    if let Some(schedule) = schedule {
        let by = if schedule.by_workers { "each worker when it starts" } else { "an operator" };
        writeln!(story, "  a schedule that ticks every {} ms, set by {by}", schedule.every_ms)?;
    }
    Ok(())
}

fn tell_end(run: &Run, story: &mut String) -> std::fmt::Result {
    for violation in &run.verdict.violations {
        let job =
            violation.id.and_then(|id| run.names.get(&id)).map(|n| format!("j{n}: ")).unwrap_or_default();
        writeln!(story, "{}: {job}{}", violation.rule, violation.detail)?;
    }
    for (rule, trouble) in &run.troubles {
        writeln!(story, "{rule}: {trouble}")?;
    }
    if run.broken().is_none() {
        writeln!(story, "every rule holds")?;
    }
    Ok(())
}

/// What is known when an event is told.
struct Telling<'a> {
    names: &'a BTreeMap<JobId, u32>,
    /// Jobs of the story; all, if empty.
    about: BTreeSet<JobId>,
    processes: BTreeMap<usize, String>,
    calls: BTreeMap<(usize, u64), Op>,
    /// The reservations of each job, in order: their fences are long numbers.
    fences: BTreeMap<JobId, Vec<u64>>,
}

impl<'a> Telling<'a> {
    fn of(run: &'a Run) -> Self {
        let guilty: BTreeSet<JobId> =
            run.verdict.violations.iter().filter_map(|violation| violation.id).collect();
        let about = if run.names.len() <= JOBS_MAX { BTreeSet::new() } else { guilty };
        Self {
            names: &run.names,
            about,
            processes: BTreeMap::new(),
            calls: BTreeMap::new(),
            fences: BTreeMap::new(),
        }
    }

    fn tell(mut self, run: &Run, story: &mut String) -> std::fmt::Result {
        for Entry { process, line } in &run.entries {
            let Some(text) = self.event(*process, line.n, &line.what) else { continue };
            let ms = line.m / 1_000_000;
            let name = self.processes.get(process).map_or("?", String::as_str);
            writeln!(story, "{:>4}.{:03} s  {name:<8} {text}", ms / 1_000, ms % 1_000)?;
        }
        Ok(())
    }

    fn is_about(&self, id: JobId) -> bool {
        self.about.is_empty() || self.about.contains(&id)
    }

    fn job(&self, id: JobId) -> String {
        self.names.get(&id).map_or_else(|| id.short(), |n| format!("j{n}"))
    }

    /// A job and the number of its reservation: `j3#2`.
    fn lease(&mut self, LeaseId(id, fence): LeaseId) -> String {
        let fences = self.fences.entry(id).or_default();
        let at = fences.iter().position(|known| *known == fence).unwrap_or_else(|| {
            fences.push(fence);
            fences.len() - 1
        });
        format!("{}#{}", self.job(id), at + 1)
    }

    fn event(&mut self, process: usize, n: u64, what: &What) -> Option<String> {
        match what {
            What::Open { proc, slots, .. } => {
                self.processes.insert(process, proc.clone());
                (0 < *slots).then(|| format!("starts with {slots} slots"))
            }
            What::Invoke(op) => {
                self.calls.insert((process, n), op.clone());
                None
            }
            What::Ok(answer) => {
                let op = self.calls.remove(&(process, n))?;
                self.answered(&op, answer)
            }
            What::Fail(why) | What::Info(why) => {
                let op = self.calls.remove(&(process, n))?;
                Some(format!("{}: {why}", self.asked(&op)?))
            }
            What::Start { id, fence, .. } => {
                self.is_about(*id).then(|| format!("{} begins", self.lease(LeaseId(*id, *fence))))
            }
            What::End { id, fence } => {
                self.is_about(*id).then(|| format!("{} returns", self.lease(LeaseId(*id, *fence))))
            }
            What::Draining { proc } => Some(format!("asks {proc} to end")),
            What::Killed { proc } => {
                let number = self.processes.iter().find(|(_, name)| *name == proc).map(|(number, _)| *number);
                let open: Vec<Op> = number
                    .map(|number| {
                        self.calls.range((number, 0)..=(number, u64::MAX)).map(|(_, op)| op.clone()).collect()
                    })
                    .unwrap_or_default();
                let open: Vec<String> = open.iter().filter_map(|op| self.asked(op)).collect();
                let open = if open.is_empty() {
                    String::new()
                } else {
                    format!("; unanswered: {}", open.join("; "))
                };
                Some(format!("{proc} is dead{open}"))
            }
            What::Healed => Some("no harm from here on".to_owned()),
            What::Harmed { times, proc: Some(proc), .. } => {
                Some(format!("{times} faults so far that may cost {proc} leases"))
            }
            What::Harmed { times: 0, .. } => Some("the store is back".to_owned()),
            What::Harmed { times, proc: None, .. } => Some(format!("{times} faults so far")),
            What::Dump { jobs, .. } => {
                let jobs: Vec<String> = jobs
                    .iter()
                    .filter(|job| self.is_about(job.id))
                    .map(|job| {
                        let why = job.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                        format!("{} {}{why}", self.job(job.id), job.state)
                    })
                    .collect();
                Some(format!("at rest: {}", jobs.join(", ")))
            }
            What::Audit { findings } => {
                (!findings.is_empty()).then(|| format!("audit: {}", findings.join("; ")))
            }
            _ => None,
        }
    }

    /// What a call asks; `None` if it is about no job of the story.
    fn asked(&mut self, op: &Op) -> Option<String> {
        let all = self.about.is_empty();
        match op {
            Op::Enqueue { jobs, .. } => {
                let jobs: Vec<_> =
                    jobs.iter().filter(|job| self.is_about(job.id)).map(|job| self.job(job.id)).collect();
                (!jobs.is_empty()).then(|| format!("enqueue {}", jobs.join(", ")))
            }
            Op::Reserve { call } => all.then(|| format!("reserve (call {})", call.1)),
            Op::Extend { leases, .. } => {
                let leases = self.leases(leases);
                (!leases.is_empty()).then(|| format!("extend {}", leases.join(", ")))
            }
            Op::Settle { runs, then } => {
                let runs: Vec<_> = runs.iter().filter(|run| self.is_about(run.id)).copied().collect();
                let mut said: Vec<_> = runs
                    .iter()
                    .map(|run| format!("{} {:?}", self.lease(LeaseId(run.id, run.fence)), run.verdict))
                    .collect();
                if all && let Some(call) = then {
                    said.push(format!("reserve (call {})", call.1));
                }
                (!said.is_empty()).then(|| format!("settle {}", said.join(", ")))
            }
            Op::Act { deed, targets } => {
                let targets: Vec<_> = targets
                    .iter()
                    .flatten()
                    .filter(|id| self.is_about(**id))
                    .map(|id| self.job(*id))
                    .collect();
                (!targets.is_empty()).then(|| format!("{deed:?} {}", targets.join(", ")))
            }
            Op::Take | Op::Sweep | Op::Purge { .. } => None,
        }
    }

    fn leases(&mut self, leases: &[LeaseId]) -> Vec<String> {
        let leases: Vec<_> = leases.iter().filter(|lease| self.is_about(lease.0)).copied().collect();
        leases.into_iter().map(|lease| self.lease(lease)).collect()
    }

    fn answered(&mut self, op: &Op, answer: &Answer) -> Option<String> {
        let answers = match answer {
            Answer::Enqueue(answers) => {
                answers.iter().map(|answer| self.accepted(answer)).collect::<Vec<_>>().join(", ")
            }
            Answer::Reserve(batch) => return self.reserved(batch).map(|batch| format!("reserve: {batch}")),
            Answer::Extend(answers) => {
                let name = |held: &Option<bool>| match held {
                    Some(true) => "held",
                    Some(false) => "lost",
                    None => "away",
                };
                answers.iter().map(name).collect::<Vec<_>>().join(", ")
            }
            Answer::Settle { states, then, .. } => {
                let batch = then.as_ref().and_then(|batch| self.reserved(batch));
                let Op::Settle { runs, .. } = op else { return None };
                let told: Vec<_> = runs.iter().zip(states).filter(|(run, _)| self.is_about(run.id)).collect();
                let told: Vec<String> = told
                    .into_iter()
                    .map(|(run, state)| {
                        let state = state.map_or_else(|| "lease lost".to_owned(), |state| state.to_string());
                        format!("{} {:?}: {state}", self.lease(LeaseId(run.id, run.fence)), run.verdict)
                    })
                    .chain(batch)
                    .collect();
                return (!told.is_empty()).then(|| format!("settle {}", told.join(", ")));
            }
            Answer::Act(effects) => effects.iter().map(Self::effect).collect::<Vec<_>>().join(", "),
            Answer::Take(_) | Answer::Sweep(_) | Answer::Purge => return None,
        };
        Some(format!("{}: {answers}", self.asked(op)?))
    }

    fn accepted(&self, answer: &Accepted) -> String {
        match answer {
            Accepted::Inserted { .. } => "inserted".to_owned(),
            Accepted::Duplicate(id) => format!("duplicate of {}", self.job(*id)),
            Accepted::Gone(id) => format!("duplicate of {}, which is gone", self.job(*id)),
            Accepted::Replaced(id) => format!("replaced {}", self.job(*id)),
            Accepted::Rescheduled(id) => format!("rescheduled {}", self.job(*id)),
            Accepted::Full => "full".to_owned(),
        }
    }

    fn effect(effect: &Effect) -> String {
        match effect {
            Effect::Done(_) => "done".to_owned(),
            Effect::Requested(_) => "requested".to_owned(),
            Effect::Refused(_, state) => format!("refused, it is {state}"),
            Effect::Missed => "missed".to_owned(),
        }
    }

    fn reserved(&mut self, batch: &Reservations) -> Option<String> {
        let mut told = Vec::new();
        for (lease, state) in &batch.reclaimed {
            if self.is_about(lease.0) {
                told.push(format!("{} reclaimed, now {state}", self.lease(*lease)));
            }
        }
        for row in &batch.jobs {
            if !self.is_about(row.id) {
                continue;
            }
            let lease = self.lease(LeaseId(row.id, row.fence));
            let expired = if row.expired_leases == 0 {
                String::new()
            } else {
                format!(", {} expired leases", row.expired_leases)
            };
            let company = if row.company { ", with company" } else { "" };
            told.push(format!("gets {lease} (attempt {}{expired}{company})", row.attempt));
        }
        (!told.is_empty()).then(|| told.join(", "))
    }
}
