//! `punctual why ID`: explains why a job is not running, or how it ended.

use std::{collections::BTreeSet, io::Write as _};

use punctual::{
    JobId, JobRecord, State, Timestamp,
    job::{Filter, Status},
    store::{List, QueueInfo},
    why::{self, Beside, LAST_CHANCE, UNKNOWN_KIND, Words, beside},
};
use serde::Serialize;

use super::{Session, hour, show::find};
use crate::{
    errors::Result,
    output::{SEPARATOR, clean, json},
    times::{relative, wall},
};

/// Pages of running jobs that are read to find what holds a job back.
const PAGES_MAX: usize = 64;
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
#[derive(Serialize)]
struct Reason {
    code: &'static str,
    text: String,
    #[serde(rename = "try", skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

pub(crate) async fn run(session: &mut Session, args: &Why) -> Result {
    let job = find(session, &args.id).await?;
    let queue = session.client.queue(&job.queue).show().await?;
    let now = session.now().await?;
    let beside = match beside(&session.client, &job, queue.as_ref(), PAGES_MAX).await {
        Ok(beside) => beside,
        Err(error) => {
            session
                .say(&format!("warning: could not read what runs beside it: {}", clean(&error.to_string())));
            Beside::UNKNOWN
        }
    };
    let at = |t: Timestamp| format!("{} ({})", wall(t, now, &session.zone), relative(t, now));
    let mut reasons = reasons(&job, queue.as_ref(), beside, now, &at);
    if queue.is_some_and(|queue| queue.counts.running == 0)
        && reasons.iter().any(|reason| reason.code == "ready")
    {
        match Traces::read(session).await {
            Ok(traces) => reasons.extend(traces.unreserved(&job.queue)),
            Err(error) => {
                session
                    .say(&format!("warning: could not read which jobs run: {}", clean(&error.to_string())));
            }
        }
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

/// Returns what keeps a job from running, or how it ended, with what can be done.
fn reasons(
    job: &JobRecord,
    queue: Option<&QueueInfo>,
    beside: Beside,
    now: Timestamp,
    at: &dyn Fn(Timestamp) -> String,
) -> Vec<Reason> {
    let reasons = why::reasons(job, queue, beside, now, Words { at, separator: SEPARATOR });
    let with_hint = |why::Reason { code, text }| Reason { code, text, hint: hint(code, job, queue) };
    reasons.into_iter().map(with_hint).collect()
}

/// Returns what can be done about a reason.
fn hint(code: &str, job: &JobRecord, queue: Option<&QueueInfo>) -> Option<String> {
    let (id, name, is_waiting) = (job.id, word(&job.queue), job.state == State::Waiting);
    let limit =
        || format!("punctual queue limit {name} --group {}", word(job.group.as_deref().unwrap_or_default()));
    Some(match code {
        "paused" => format!("punctual queue resume {name}"),
        UNKNOWN_KIND => format!("start a worker with a handler for queue {name}, then punctual run-now {id}"),
        LAST_CHANCE if is_waiting => format!("start another worker for queue {name}"),
        "concurrency_key" => {
            let key = job.concurrency.as_ref().map(|of| of.key.as_str()).unwrap_or_default();
            format!(
                "punctual ls 'queue:{} state:running concurrency:\"{key}\"'    lists the running jobs",
                job.queue
            )
        }
        "limit" => format!("punctual queue limit {name} --concurrency N|none"),
        "closed" => format!("punctual queue open {name}    ends such a pause"),
        "group_limit" => format!("{} --concurrency N|none", limit()),
        "group_closed" => {
            let group = job.group.as_deref().unwrap_or_default();
            match queue.and_then(|queue| queue.settings.of_group(group).rate) {
                Some(_) => format!("{} --rate N/DURATION|none", limit()),
                None => format!("punctual queue open {name} --group {}    ends the pause", word(group)),
            }
        }
        "not_due" => format!("punctual run-now {id}"),
        "ready" if 0 < queue?.counts.running => format!("add slots or workers for queue {name}"),
        "done" => format!("punctual retry {id}    runs the job again"),
        "dead" | "cancelled" => format!("punctual retry {id}"),
        _ => return None,
    })
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

/// Quotes a word of a suggested command for the shell.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:/@".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use punctual::{
        Client, NewJob, Payload, When,
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
        let beside = beside(client, &job, queue.as_ref(), PAGES_MAX).await.unwrap();
        let reasons = reasons(&job, queue.as_ref(), beside, now, &|at| at.to_string());
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

    /// More jobs run than were counted, so a reason that only the count would exclude is not given.
    #[tokio::test]
    async fn a_limit_that_was_not_seen_to_be_reached_is_named_with_the_others() {
        let client = client(of_all(GroupLimits { concurrency: Some(1), ..GroupLimits::default() })).await;
        push(&client, "acme", Some("row")).await;
        let id = push(&client, "acme", Some("row")).await;
        reserve(&client).await;
        let (job, queue) =
            (client.get(id).await.unwrap().unwrap(), client.queue("mail").show().await.unwrap());
        let now = client.store().now().await.unwrap();
        let said = reasons(&job, queue.as_ref(), Beside::UNKNOWN, now, &|at| at.to_string());
        let [Reason { code: "blocked", text, hint: None }] = &said[..] else { panic!("{}", said[0].text) };
        let expected = "the job is due, but its concurrency key \"row\" (at most 1 at once) or a limit of its group \"acme\" holds it back";
        assert_eq!(text, expected);
        let counted = beside(&client, &job, queue.as_ref(), 0).await.unwrap();
        assert!(counted.is_part, "no page was read");
    }

    /// What failed before, and what a worker said of it, is no reason to wait for a job that is due.
    #[tokio::test]
    async fn that_nothing_holds_a_job_back_comes_before_its_last_failure() {
        let client = client(QueueSettings::default()).await;
        let id = push(&client, "acme", None).await;
        let lease = reserve(&client).await.jobs[0].lease;
        let verdict = Verdict::Retry { at: When::Now, error: "no route".to_owned() };
        client.store().settle(&[Settlement { lease, verdict }], None).await.unwrap();
        let said = said(&client, id).await;
        assert_eq!(said.iter().map(|said| said.0).collect::<Vec<_>>(), ["ready", "failed"]);
        let lease = client.store().reserve(&want(2)).await.unwrap().jobs[0].lease;
        let verdict = Verdict::Dead { error: "no such user".to_owned() };
        client.store().settle(&[Settlement { lease, verdict }], None).await.unwrap();
        let said = super::tests::said(&client, id).await;
        assert_eq!(said.iter().map(|said| said.0).collect::<Vec<_>>(), ["dead"]);
        assert!(said[0].1.starts_with("the job is dead: no such user, "), "{}", said[0].1);
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
