//! `punctual why ID`: explains why a job is not running, or how it ended.

use std::{collections::BTreeSet, io::Write as _};

use punctual::{
    Client, JobId, JobRecord, State, Timestamp,
    job::{Filter, Status},
    limits::{BATCH_MAX, POISON_LIMIT},
    store::{List, QueueInfo},
};
use serde::Serialize;

use super::{Session, hour, show::find};
use crate::{
    errors::Result,
    output::{clean, counted, grouped, json},
    times::{relative, wall},
};

/// The reason of a job that was snoozed because its worker has no handler for its kind.
const UNKNOWN_KIND: &str = "unknown_kind";
/// The reason of a job that its worker gave back, because other jobs on their last chance ran there.
const LAST_CHANCE: &str = "last_chance";

/// Running jobs that are read to find workers.
const RUNS_READ: usize = 200;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first line is the main reason; lines with \"also\" are further reasons, and lines with \"try\" are commands that help.

Examples:
  punctual why 5c1e9f04
  punctual why 5c1e9f04 -o json")]
pub(crate) struct Why {
    /// Id of the job, or at least six digits of its beginning or end.
    id: String,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer {
    id: JobId,
    status: Status,
    reasons: Vec<Reason>,
}

/// One reason; the first weighs most.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Reason {
    /// In a word, for programs.
    code: &'static str,
    text: String,
    #[serde(rename = "try", skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// What runs beside a job that is due.
#[derive(Clone, Copy, Default)]
struct Beside {
    /// Jobs of its group.
    of_group: u32,
    /// Jobs of its concurrency key.
    of_key: u32,
}

/// Counts the running jobs of a due job's group and concurrency key, if it has any.
async fn beside(client: &Client, job: &JobRecord, now: Timestamp) -> Result<Beside> {
    let mut beside = Beside::default();
    let is_due = job.state == State::Waiting && job.run_at <= now;
    if !is_due || job.group.is_none() && job.concurrency.is_none() {
        return Ok(beside);
    }
    let filter = Filter::all().queue(&job.queue).state([State::Running]);
    let mut list = List { filter, after: None, limit: BATCH_MAX };
    loop {
        let page = client.list(&list).await?;
        for other in page.jobs.iter().filter(|other| other.group == job.group) {
            beside.of_group += 1;
            let key = |job: &JobRecord| job.concurrency.as_ref().map(|of| of.key.clone());
            beside.of_key += u32::from(key(other).is_some() && key(other) == key(job));
        }
        match page.next {
            Some(next) => list.after = Some(next),
            None => return Ok(beside),
        }
    }
}

pub(crate) async fn run(session: &mut Session, args: &Why) -> Result {
    let job = find(session, &args.id).await?;
    let queue = session.client.queue(&job.queue).show().await?;
    let now = session.now().await?;
    let beside = beside(&session.client, &job, now).await?;
    let at = |t: Timestamp| format!("{} ({})", wall(t, now, &session.zone), relative(t, now));
    let mut reasons = reasons(&job, queue.as_ref(), beside, now, at);
    if let (Some(queue), [Reason { code: "ready", .. }]) = (&queue, &reasons[..])
        && queue.counts.running == 0
    {
        reasons.extend(Traces::read(session).await?.unreserved(&job.queue));
    }
    let answer = Answer { id: job.id, status: job.status(now), reasons };
    if session.format.is_json() {
        return Ok(json(&mut session.out, &answer)?);
    }
    for (i, reason) in answer.reasons.iter().enumerate() {
        if i == 0 {
            let (style, status) = (session.paint.status(answer.status), answer.status);
            write!(session.out, "{style}{status}{style:#}:")?;
        } else {
            write!(session.out, "  also ")?;
        }
        writeln!(session.out, " {}", clean(&reason.text))?;
    }
    for hint in answer.reasons.iter().filter_map(|reason| reason.hint.as_ref()) {
        writeln!(session.out, "  try    {}", clean(hint))?;
    }
    Ok(())
}

/// Returns what keeps a job from running, or how it ended.
fn reasons(
    job: &JobRecord,
    queue: Option<&QueueInfo>,
    beside: Beside,
    now: Timestamp,
    at: impl Fn(Timestamp) -> String,
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut add = |code, text: String, hint: Option<String>| reasons.push(Reason { code, text, hint });
    let id = job.id;
    match job.state {
        State::Waiting => {
            if let Some(pause) = queue.and_then(|queue| queue.settings.paused.as_ref()) {
                let since = at(Timestamp::saturating_from_ms(pause.since_ms));
                let text =
                    format!("queue {} is paused (by {}, {since}, {:?})", job.queue, pause.by, pause.reason);
                add("paused", text, Some(format!("punctual queue resume {}", job.queue)));
            }
            if job.expires_at.is_some_and(|expires_at| expires_at <= now) {
                add("expired", "the job expired before it started, and will be cancelled".into(), None);
            }
            if job.reason.as_deref() == Some(UNKNOWN_KIND) {
                let text = format!("the worker that reserved the job has no handler for kind {}", job.kind);
                let hint = format!(
                    "start a worker with a handler for queue {}, then punctual run-now {id}",
                    job.queue
                );
                add(UNKNOWN_KIND, text, Some(hint));
            } else if job.reason.as_deref() == Some(LAST_CHANCE) {
                if now < job.run_at {
                    let text = format!(
                        "held: after {} in a row, the job runs apart from others like it, and its worker gave it back",
                        counted(job.expired_leases.into(), "expired lease")
                    );
                    add(LAST_CHANCE, text, Some(format!("start another worker for queue {}", job.queue)));
                }
            } else if 0 < job.snoozes {
                let why = job.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
                add(
                    "snoozed",
                    format!(
                        "its handler snoozed the job {} in a row{why}",
                        counted(u64::from(job.snoozes), "time")
                    ),
                    None,
                );
            }
            if let (true, Some(failure)) = (1 < job.attempt, job.failures.last()) {
                add("failed", format!("attempt {} failed: {}", failure.attempt, failure.error), None);
            }
            if let Some(of) = job.concurrency.as_ref().filter(|of| job.blocked && of.limit <= beside.of_key) {
                let runs = if of.limit == 1 {
                    "another job with this key is running".to_owned()
                } else {
                    format!("{} with this key are running, its limit", counted(of.limit.into(), "job"))
                };
                add(
                    "concurrency_key",
                    format!("the job is due, but its concurrency key {:?} is in use: {runs}", of.key),
                    Some(format!(
                        "punctual ls 'queue:{} state:running concurrency:\"{}\"'    lists the running jobs",
                        job.queue, of.key
                    )),
                );
            }
            if let Some(queue) = queue
                && job.run_at <= now
            {
                let (name, running) = (&job.queue, queue.counts.running);
                if let Some(most) = queue.settings.concurrency.filter(|most| u64::from(*most) <= running) {
                    let text = format!("queue {name} runs {}, its limit of {most}", counted(running, "job"));
                    add("limit", text, Some(format!("punctual queue limit {name} --concurrency N|none")));
                }
                if let Some(opens_at) = queue.opens_at {
                    let why = match queue.settings.rate {
                        Some(_) => "because of its rate, or because a run asked for a pause",
                        None => "because a run asked for a pause",
                    };
                    let hint = format!("punctual queue open {}    ends such a pause", word(name));
                    let text = format!("queue {name} starts nothing until {}, {why}", at(opens_at));
                    add("closed", text, Some(hint));
                }
                if let Some(Reason { code, text, hint }) = group_holds(job, queue, beside) {
                    add(code, text, hint);
                }
            }
            if now < job.run_at {
                add(
                    "not_due",
                    format!("the job is due {}", at(job.run_at)),
                    Some(format!("punctual run-now {id}")),
                );
            } else if let (true, Some(queue)) = (reasons.is_empty(), queue) {
                let (due, running) = (queue.counts.due, queue.counts.running);
                let text = format!(
                    "the job has been due since {}; queue {} has {} due and {} running jobs",
                    at(job.run_at),
                    job.queue,
                    grouped(due),
                    grouped(running)
                );
                let hint = (0 < running).then(|| format!("add slots or workers for queue {}", job.queue));
                reasons.push(Reason { code: "ready", text, hint });
            }
        }
        State::Running => {
            if let Some(running) = &job.running {
                let text = format!(
                    "worker {} runs the job, attempt {}/{}, lease until {}",
                    running.worker,
                    job.attempt,
                    job.max_attempts,
                    at(running.until)
                );
                add("running", text, None);
                if let Some(line) = job.notes.log.last().filter(|line| line.attempt == job.attempt) {
                    add("log", format!("the run reported last: {}", line.text), None);
                }
                if POISON_LIMIT <= job.expired_leases + 1 {
                    let text = format!(
                        "after {} in a row, the job runs apart from others like it: if some run in its worker, it is held there for \
                         some seconds, and then given back",
                        counted(job.expired_leases.into(), "expired lease")
                    );
                    add(LAST_CHANCE, text, None);
                }
                if running.until <= now {
                    add(
                        "lease_over",
                        "its lease has expired; the next reserve of its queue reclaims the job. Without a worker, upkeep or a cancel does, one minute later".into(),
                        None,
                    );
                }
            }
            if job.cancel_requested {
                add(
                    "cancel_requested",
                    "a cancel was requested; the worker gets the request at its next heartbeat".into(),
                    None,
                );
            }
        }
        State::Done => {
            add(
                "done",
                ended("the job is done", job, &at),
                Some(format!("punctual retry {id}    runs the job again")),
            );
        }
        State::Dead => {
            let why = match job.reason.as_deref() {
                Some("attempts") => format!("all {} attempts failed", job.max_attempts),
                Some("crashes") => {
                    "its lease expired too often in a row, because its workers died".to_owned()
                }
                Some("snoozes") => "the job was snoozed too often".to_owned(),
                Some(reason) => reason.to_owned(),
                None => "the job was given up".to_owned(),
            };
            add("dead", ended(&why, job, &at), Some(format!("punctual retry {id}")));
            if let Some(failure) = job.failures.last() {
                add("failed", format!("attempt {} failed: {}", failure.attempt, failure.error), None);
            }
        }
        State::Cancelled => {
            let why = match job.reason.as_deref() {
                Some("expired") => "the job expired before it started".to_owned(),
                Some("cancelled") | None => "the job was cancelled".to_owned(),
                Some(reason) => format!("the job was cancelled: {reason}"),
            };
            add("cancelled", ended(&why, job, &at), Some(format!("punctual retry {id}")));
        }
    }
    reasons
}

/// Traces of workers in a store: of those that run jobs, or did in the last hour. Idle ones are in the list of workers.
#[derive(Default)]
struct Traces {
    /// Queues of jobs that run now.
    queues: BTreeSet<String>,
    /// The workers that run them.
    workers: BTreeSet<String>,
    /// Whether more jobs run than were read.
    is_part: bool,
    /// Queues whose jobs ran in the last hour; `None`: the store does not say.
    last_hour: Option<Vec<String>>,
}

impl Traces {
    /// Reads one page of running jobs, and the queues that ran most in the last hour.
    async fn read(session: &Session) -> Result<Self> {
        let filter = Filter::all().state([State::Running]);
        let page = session.client.list(&List { filter, after: None, limit: RUNS_READ }).await?;
        let mut traces = Self { is_part: page.next.is_some(), ..Self::default() };
        for job in page.jobs {
            traces.workers.extend(job.running.map(|running| running.worker));
            traces.queues.insert(job.queue);
        }
        let hour = hour::read(session).await;
        traces.last_hour = hour.map(|hour| hour.queues.into_iter().map(|ran| ran.name).collect());
        Ok(traces)
    }

    /// Returns why no worker may have reserved a job that nothing holds back, in a queue where no job runs.
    fn unreserved(&self, queue: &str) -> [Reason; 2] {
        let served = format!(
            "no worker has reserved the job yet: no worker serves queue {queue}, or all slots of its workers are busy"
        );
        let serve = format!(
            "punctual work --exec … -q {}    serves the queue; a worker logs its queues when it starts (work -v)",
            word(queue)
        );
        let now = if self.queues.is_empty() {
            "no job of any queue is running".to_owned()
        } else {
            let more = if self.is_part { ", maybe more" } else { "" };
            format!(
                "jobs are running in {}{more}, on {}",
                named("queue", &self.queues),
                named("worker", &self.workers)
            )
        };
        let hour = match self.last_hour.as_deref() {
            None => String::new(),
            Some([]) => "; no run ended in the last hour".to_owned(),
            Some(queues) => format!("; runs ended in the last hour in {}", named("queue", queues)),
        };
        [
            Reason { code: "unreserved", text: served, hint: Some(serve) },
            Reason {
                code: "workers",
                text: format!("{now}{hour}; `punctual worker ls` also lists idle workers"),
                hint: None,
            },
        ]
    }
}

/// `queue mail`, `queues bulk, mail and 3 more`.
fn named<'a>(noun: &str, names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    let more = match names.len().saturating_sub(hour::SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let s = if names.len() == 1 { "" } else { "s" };
    format!("{noun}{s} {}{more}", names[..names.len().min(hour::SHOWN)].join(", "))
}

/// Returns how the group of a due job holds it back.
fn group_holds(job: &JobRecord, queue: &QueueInfo, beside: Beside) -> Option<Reason> {
    let group = job.group.as_deref()?;
    let limits = queue.settings.of_group(group);
    let limit = format!("punctual queue limit {} --group {}", job.queue, word(group));
    if let Some(most) = limits.concurrency.filter(|most| *most <= beside.of_group) {
        let runs = counted(beside.of_group.into(), "job");
        let text = format!("group {group:?} of queue {} runs {runs}, its limit of {most}", job.queue);
        return Some(Reason {
            code: "group_limit",
            text,
            hint: Some(format!("{limit} --concurrency N|none")),
        });
    }
    // The job is blocked, and only a limit over time is left as the reason.
    let by_key = job.concurrency.as_ref().is_some_and(|of| of.limit <= beside.of_key);
    let most = queue.settings.concurrency.map(u64::from);
    let by_queue = queue.opens_at.is_some() || most.is_some_and(|most| most <= queue.counts.running);
    if !job.blocked || by_key || by_queue {
        return None;
    }
    let (why, hint) = match limits.rate {
        Some(_) => (
            "because of its rate, or because a run asked for a pause",
            format!("{limit} --rate N/DURATION|none"),
        ),
        None => (
            "because a run asked for a pause",
            format!("punctual queue open {} --group {}    ends the pause", word(&job.queue), word(group)),
        ),
    };
    let text = format!("group {group:?} of queue {} starts nothing for now, {why}", job.queue);
    Some(Reason { code: "group_closed", text, hint: Some(hint) })
}

/// Quotes a word of a suggested command for the shell.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:/@".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn ended(why: &str, job: &JobRecord, at: impl Fn(Timestamp) -> String) -> String {
    match job.finished_at {
        Some(finished_at) => format!("{why}, {}", at(finished_at)),
        None => why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use punctual::{
        NewJob, Payload, When,
        job::Concurrency,
        store::{
            Batch, CallId, GroupLimits, QueueRequest, QueueSettings, Rate, Reserve, Settlement, Verdict,
            clock::{Clock, ManualClock},
            memory::MemoryStore,
        },
    };

    use super::*;

    /// A client of an empty store whose clock stands still, with a queue of these settings.
    async fn client(settings: QueueSettings) -> Client {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_192_330_000));
        let client = Client::new(Arc::new(MemoryStore::new(Clock::Manual(clock))));
        client.queue("mail").set(settings).await.unwrap();
        client
    }

    fn of_all(group: GroupLimits) -> QueueSettings {
        QueueSettings { group, ..QueueSettings::default() }
    }

    async fn push(client: &Client, group: &str, key: Option<&str>) -> JobId {
        let mut job = NewJob::new(client.make_id(), "k", "mail", Payload::json("1"));
        job.group = Some(group.to_owned());
        job.concurrency = key.map(|key| Concurrency { key: key.to_owned(), limit: 1 });
        client.push(vec![job]).await.unwrap()[0].id().unwrap()
    }

    fn want(number: u64) -> Reserve {
        Reserve {
            call: CallId { instance: 1, number },
            worker: "w".to_owned(),
            queues: vec![QueueRequest { queue: "mail".to_owned(), share: 9, at_most: 9 }],
            n: 9,
            lease: None,
            company: false,
        }
    }

    async fn reserve(client: &Client) -> Batch {
        client.store().reserve(&want(1)).await.unwrap()
    }

    /// What is said of a job, and what to try.
    async fn said(client: &Client, id: JobId) -> Vec<(&'static str, String, Option<String>)> {
        let (job, queue) =
            (client.get(id).await.unwrap().unwrap(), client.queue("mail").show().await.unwrap());
        let now = client.store().now().await.unwrap();
        let beside = beside(client, &job, now).await.unwrap();
        let reasons = reasons(&job, queue.as_ref(), beside, now, |at| at.to_string());
        reasons.into_iter().map(|reason| (reason.code, reason.text, reason.hint)).collect()
    }

    #[tokio::test]
    async fn a_group_that_is_full_is_named() {
        let client = client(of_all(GroupLimits { concurrency: Some(1), ..GroupLimits::default() })).await;
        push(&client, "acme", None).await;
        let id = push(&client, "acme", None).await;
        assert_eq!(said(&client, id).await[0].0, "ready");
        reserve(&client).await;
        let [(code, text, hint)] = &said(&client, id).await[..] else { panic!("one reason") };
        let expected = "group \"acme\" of queue mail runs 1 job, its limit of 1";
        assert_eq!((*code, text.as_str()), ("group_limit", expected));
        assert_eq!(hint.as_deref(), Some("punctual queue limit mail --group acme --concurrency N|none"));
    }

    #[tokio::test]
    async fn a_job_on_its_last_chance_may_be_held() {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_192_330_000));
        let client = Client::new(Arc::new(MemoryStore::new(Clock::Manual(clock.clone()))));
        let id = push(&client, "acme", None).await;
        let codes = async || said(&client, id).await.into_iter().map(|(code, ..)| code).collect::<Vec<_>>();
        for number in 1..=3 {
            let runs = client.store().reserve(&want(number)).await.unwrap().jobs;
            assert_eq!(codes().await.contains(&LAST_CHANCE), number == 3, "{number}");
            if number == 3 {
                let verdict = Verdict::Snooze {
                    after: std::time::Duration::from_mins(1),
                    reason: Some(LAST_CHANCE.to_owned()),
                };
                client.store().settle(&[Settlement { lease: runs[0].lease, verdict }], None).await.unwrap();
            }
            for _ in 0..3 {
                clock.advance(std::time::Duration::from_secs(6));
                client.store().extend(&[]).await.unwrap();
            }
        }
        let (code, text, _) = said(&client, id).await.swap_remove(0);
        assert_eq!(code, LAST_CHANCE);
        assert!(text.starts_with("held: after 2 expired leases in a row, the job runs apart"), "{text}");
    }

    #[test]
    fn a_shell_reads_a_name_as_one_word() {
        for (name, shown) in
            [("acme.com", "acme.com"), ("Ana's", r"'Ana'\''s'"), ("a b", "'a b'"), ("-", "'-'")]
        {
            assert_eq!(word(name), shown);
        }
    }

    #[tokio::test]
    async fn a_group_that_is_closed_is_named() {
        let rate = Some(Rate { max: 1, period_ms: 1_000, burst: 1 });
        let client = client(of_all(GroupLimits { rate, ..GroupLimits::default() })).await;
        push(&client, "acme", None).await;
        let id = push(&client, "acme", None).await;
        let batch = reserve(&client).await;
        let [(code, text, hint)] = &said(&client, id).await[..] else { panic!("one reason") };
        let expected = "group \"acme\" of queue mail starts nothing for now, because of its rate, or because a run asked for a pause";
        assert_eq!((*code, text.as_str()), ("group_closed", expected));
        assert_eq!(hint.as_deref(), Some("punctual queue limit mail --group acme --rate N/DURATION|none"));
        client.queue("mail").set(QueueSettings::default()).await.unwrap();
        assert_eq!(said(&client, id).await[0].0, "ready");
        let at = When::In(std::time::Duration::from_secs(9));
        let verdict = Verdict::RetryAfter { at, error: "429".to_owned() };
        client.store().settle(&[Settlement { lease: batch.jobs[0].lease, verdict }], None).await.unwrap();
        let [(code, text, hint)] = &said(&client, id).await[..] else { panic!("one reason") };
        let expected = "group \"acme\" of queue mail starts nothing for now, because a run asked for a pause";
        assert_eq!(
            (*code, text.as_str(), hint),
            (
                "group_closed",
                expected,
                &Some("punctual queue open mail --group acme    ends the pause".to_owned())
            )
        );
    }

    #[test]
    fn what_workers_left_is_named_in_a_few_words() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let mut traces = Traces::default();
        let text = |traces: &Traces| traces.unreserved("mail")[1].text.clone();
        assert_eq!(
            text(&traces),
            "no job of any queue is running; `punctual worker ls` also lists idle workers"
        );
        traces.last_hour = Some(Vec::new());
        let nothing = "no job of any queue is running; no run ended in the last hour; `punctual worker ls` also lists idle workers";
        assert_eq!(text(&traces), nothing);
        traces.queues = names(&["a", "b", "c", "d", "e", "f", "g"]);
        traces.workers = names(&["w-1", "w-2"]);
        (traces.is_part, traces.last_hour) = (true, Some(vec!["mail".to_owned()]));
        assert_eq!(
            text(&traces),
            "jobs are running in queues a, b, c, d, e and 2 more, maybe more, on workers w-1, w-2; \
             runs ended in the last hour in queue mail; `punctual worker ls` also lists idle workers"
        );
    }

    #[tokio::test]
    async fn a_key_is_named_where_it_is_taken() {
        let client = client(of_all(GroupLimits { concurrency: Some(2), ..GroupLimits::default() })).await;
        push(&client, "acme", Some("row")).await;
        let id = push(&client, "acme", Some("row")).await;
        push(&client, "other", Some("row")).await;
        reserve(&client).await;
        let codes: Vec<&str> = said(&client, id).await.iter().map(|said| said.0).collect();
        assert_eq!(codes, ["concurrency_key"]);
        client
            .queue("mail")
            .set(of_all(GroupLimits { concurrency: Some(1), ..GroupLimits::default() }))
            .await
            .unwrap();
        let codes: Vec<&str> = said(&client, id).await.iter().map(|said| said.0).collect();
        assert_eq!(codes, ["concurrency_key", "group_limit"]);
        let free = push(&client, "acme", Some("free")).await;
        let codes: Vec<&str> = said(&client, free).await.iter().map(|said| said.0).collect();
        assert_eq!(codes, ["group_limit"], "its key is free");
    }
}
