//! `punctual topic …`: manages topics. A published job is enqueued in each subscribed queue, by the workers.

use std::{io::Write as _, time::Duration};

use punctual::{
    JobId, Timestamp, When,
    job::{Filter, Status, parse_duration},
    limits::BATCH_MAX,
    store::{Enqueued, List},
    topic::{TOPICS_QUEUE, Topic as Known},
};
use serde::Serialize;

use super::{Session, push::Choices};
use crate::{
    errors::{Failure, Result},
    output::{Format, Table, clean, json},
    times::{self, relative, wall},
};

/// The most waiting publications that `show` lists.
const WAITING_MAX: usize = 20;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
A topic is a name that queues subscribe to. When a publication is due, it becomes one job in each subscribed queue.

Examples:
  punctual topic subscribe user.created mail crm
  punctual topic publish user.created user.created '{\"id\":42}'
  punctual topic ls")]
pub(crate) enum Topic {
    /// List topics and their subscribed queues.
    #[command(after_help = "\
Examples:
  punctual topic ls
  punctual topic ls -o json")]
    Ls,
    /// Show one topic: its subscribed queues and its waiting publications.
    #[command(after_help = "\
Examples:
  punctual topic show user.created
  punctual topic show user.created -o json")]
    Show {
        /// Name of the topic.
        topic: String,
    },
    /// Subscribe queues: each gets a job for every publication that is due from now on.
    #[command(after_help = "\
Examples:
  punctual topic subscribe user.created mail
  punctual topic subscribe user.created mail crm audit-log")]
    Subscribe {
        /// Name of the topic.
        topic: String,
        /// The queues.
        #[arg(required = true)]
        queues: Vec<String>,
    },
    /// Unsubscribe queues; the queues keep the jobs that they have.
    #[command(after_help = "\
Examples:
  punctual topic unsubscribe user.created crm
  punctual topic unsubscribe user.created crm audit-log")]
    Unsubscribe {
        /// Name of the topic.
        topic: String,
        /// The queues.
        #[arg(required = true)]
        queues: Vec<String>,
    },
    /// Publish a job to a topic.
    Publish(Box<Publish>),
    /// Remove a topic and all of its subscriptions.
    #[command(after_help = "\
Examples:
  punctual topic rm user.created
  punctual topic rm user.created -o json")]
    Rm {
        /// Name of the topic.
        topic: String,
    },
}

#[derive(Debug, clap::Args)]
#[command(
    // It has all choices of a job but this one.
    mut_arg("queue", |arg| arg.hide(true)),
    after_help = "\
Each queue that is subscribed when the publication is due gets a job like this one. Until then the publication waits in \
the queue $topics. The commands ls, show, why, cancel and reschedule find it there by its id.

Examples:
  punctual topic publish user.created user.created '{\"id\":42}'
  punctual topic publish sale sale.open --at 'tomorrow 09:00' --idempotency-key sale-7"
)]
pub(crate) struct Publish {
    /// Name of the topic.
    topic: String,
    /// Kind of the jobs: the name that selects their handler.
    kind: String,
    /// Payload: JSON, @FILE, or - for stdin (default: null).
    payload: Option<String>,
    /// Delay until the publication is due, as 90s, 15m or 1h30m (default: due now).
    #[arg(long = "in", value_name = "DURATION", conflicts_with = "at", value_parser = parse_duration)]
    delay: Option<Duration>,
    /// Time when it is due: 2026-12-24T18:00:00Z, 2026-12-24T18:00[Europe/Berlin], 'tomorrow 09:00' or +2h.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Time to give up: a job that has not started by then is cancelled (default: none).
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Id of the publication, made by punctual (default: a new one).
    #[arg(long, conflicts_with = "idempotency_key")]
    id: Option<JobId>,
    /// Text that identifies the publication: a second one with the same text, topic, kind and group (else concurrency key) is a duplicate.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    choices: Choices,
}

impl Topic {
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self, Self::Ls | Self::Show { .. })
    }

    pub(crate) const fn makes_a_store(&self) -> bool {
        matches!(self, Self::Subscribe { .. } | Self::Publish(_))
    }

    /// Whether `--timeout` is an option of its job.
    pub(crate) const fn has_a_job(&self) -> bool {
        matches!(self, Self::Publish(_))
    }
}

pub(crate) async fn run(session: &mut Session, command: &Topic) -> Result {
    match command {
        Topic::Ls => ls(session).await,
        Topic::Show { topic } => show(session, topic).await,
        Topic::Subscribe { topic, queues } => subscribe(session, topic, queues).await,
        Topic::Unsubscribe { topic, queues } => unsubscribe(session, topic, queues).await,
        Topic::Publish(args) => publish(session, args).await,
        Topic::Rm { topic } => {
            if !session.client.topic(topic).remove().await? {
                return Err(unknown(topic));
            }
            if session.format.is_json() {
                return Ok(json(&mut session.out, &Removed { topic, removed: true })?);
            }
            Ok(writeln!(session.out, "removed {}", clean(topic))?)
        }
    }
}

fn unknown(topic: &str) -> Failure {
    Failure::not_found(format!("there is no topic {topic:?}")).hint("punctual topic ls    lists all topics")
}

async fn known(session: &Session, topic: &str) -> Result<Known> {
    session.client.topic(topic).get().await?.ok_or_else(|| unknown(topic))
}

/// A topic as JSON.
#[derive(Serialize)]
struct View<'a> {
    topic: &'a str,
    queues: &'a [String],
}

impl<'a> From<&'a Known> for View<'a> {
    fn from(topic: &'a Known) -> Self {
        Self { topic: &topic.name, queues: &topic.queues }
    }
}

#[derive(Serialize)]
struct Removed<'a> {
    topic: &'a str,
    removed: bool,
}

async fn ls(session: &mut Session) -> Result {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = session.client.topics(after.as_deref()).await?;
        for topic in page.unreadable {
            session.say(&format!(
                "topic {} cannot be read: remove it, and subscribe its queues again",
                clean(&topic)
            ));
        }
        all.extend(page.topics);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let out = &mut session.out;
    match session.format {
        Format::Json => json(out, &all.iter().map(View::from).collect::<Vec<_>>())?,
        Format::Ndjson => all.iter().try_for_each(|topic| json(out, &View::from(topic)))?,
        Format::Ids => all.iter().try_for_each(|topic| writeln!(out, "{}", clean(&topic.name)))?,
        Format::Human | Format::Wide => {
            let mut table = Table::new(["TOPIC", "SUBSCRIBED", "QUEUES"]);
            for topic in &all {
                table.row([topic.name.clone(), topic.queues.len().to_string(), topic.queues.join(" ")]);
            }
            table.print(out)?;
        }
    }
    Ok(())
}

/// A publication that waits, as JSON.
#[derive(Serialize)]
struct Waiting {
    id: JobId,
    kind: String,
    run_at_ms: u64,
}

async fn show(session: &mut Session, name: &str) -> Result {
    let topic = known(session, name).await?;
    let (waiting, is_all) = waiting(session, name).await?;
    let now = session.now().await?;
    if session.format.is_json() {
        #[derive(Serialize)]
        struct Shown<'a> {
            #[serde(flatten)]
            topic: View<'a>,
            waiting: Vec<Waiting>,
            /// Whether these are all.
            complete: bool,
        }
        let shown = Shown { topic: View::from(&topic), waiting, complete: is_all };
        return Ok(json(&mut session.out, &shown)?);
    }
    let (zone, out) = (session.zone.clone(), &mut session.out);
    writeln!(out, "{}", clean(&topic.name))?;
    let mut line = |name: &str, text: &str| writeln!(out, "  {name:<10} {}", clean(text));
    let queues = if topic.queues.is_empty() { "no queue".to_owned() } else { topic.queues.join("  ") };
    line("subscribed", &queues)?;
    if waiting.is_empty() {
        line("waiting", "nothing")?;
    }
    for Waiting { id, kind, run_at_ms } in waiting {
        let at = Timestamp::saturating_from_ms(run_at_ms);
        let text = format!("{kind}  {} ({}), job {}", wall(at, now, &zone), relative(at, now), id.short());
        line("waiting", &text)?;
    }
    if !is_all {
        line("", "and more: punctual ls 'queue:$topics' state:waiting    lists all")?;
    }
    Ok(())
}

/// The next publications of a topic that wait, among the first ones of all topics; whether these are all.
async fn waiting(session: &Session, name: &str) -> Result<(Vec<Waiting>, bool)> {
    let filter = Filter::parse(&format!("queue:{TOPICS_QUEUE} state:waiting"))?;
    let page = session.client.list(&List { filter, after: None, limit: BATCH_MAX }).await?;
    let of = page.jobs.into_iter().filter(|job| job.headers.get("topic").is_some_and(|topic| topic == name));
    let mut waiting: Vec<Waiting> =
        of.map(|job| Waiting { id: job.id, kind: job.kind, run_at_ms: job.run_at.as_ms() }).collect();
    waiting.sort_by_key(|job| (job.run_at_ms, job.id));
    let is_all = page.next.is_none() && waiting.len() <= WAITING_MAX;
    waiting.truncate(WAITING_MAX);
    Ok((waiting, is_all))
}

/// A change of one subscription, as JSON.
#[derive(Serialize)]
struct Changed<'a> {
    topic: &'a str,
    queue: &'a str,
    /// `subscribed`, `unsubscribed`, or `unchanged`.
    status: &'static str,
}

async fn subscribe(session: &mut Session, topic: &str, queues: &[String]) -> Result {
    for queue in queues {
        let is_new = session.client.topic(topic).subscribe(queue).await?;
        let (status, words) =
            if is_new { ("subscribed", "subscribed") } else { ("unchanged", "already subscribed") };
        changed(session, &Changed { topic, queue, status }, words)?;
    }
    Ok(())
}

async fn unsubscribe(session: &mut Session, topic: &str, queues: &[String]) -> Result {
    known(session, topic).await?;
    for queue in queues {
        let was = session.client.topic(topic).unsubscribe(queue).await?;
        let (status, words) =
            if was { ("unsubscribed", "unsubscribed") } else { ("unchanged", "not subscribed") };
        changed(session, &Changed { topic, queue, status }, words)?;
    }
    Ok(())
}

fn changed(session: &mut Session, changed: &Changed<'_>, words: &str) -> Result {
    match session.format {
        Format::Json | Format::Ndjson => json(&mut session.out, changed)?,
        Format::Ids => writeln!(session.out, "{}", clean(changed.queue))?,
        Format::Human | Format::Wide => {
            writeln!(session.out, "{words} {}  topic {}", clean(changed.queue), clean(changed.topic))?;
        }
    }
    Ok(())
}

/// A publication as JSON.
#[derive(Serialize)]
struct Published<'a> {
    topic: &'a str,
    id: JobId,
    status: &'static str,
    /// `None` of a duplicate.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at_ms: Option<u64>,
    /// The number of subscribed queues now. What counts is the number when the publication is due.
    subscribed: usize,
}

async fn publish(session: &mut Session, args: &Publish) -> Result {
    if args.choices.has_a_queue() {
        return Err(Failure::invalid("topic publish does not take --queue")
            .why("each queue that is subscribed to the topic gets a job")
            .hint("punctual push -q QUEUE    enqueues a job in one queue"));
    }
    let topic = session.client.topic(&args.topic);
    let mut job = args.choices.job(session.client.make_id(), &args.kind, args.payload.as_deref())?;
    let clock = session.wall_clock();
    job.run_at = match (args.delay, &args.at) {
        (Some(delay), _) => When::In(delay),
        (None, Some(at)) => times::when(at, &clock)?,
        (None, None) => When::Now,
    };
    job.expires_at = args.expires.as_deref().map(|at| times::when(at, &clock)).transpose()?;
    if let Some(id) = args.id {
        job.id = id;
    } else if let Some(key) = &args.idempotency_key {
        job.id = topic.derived_id(&job, key)?;
    }
    let answers = topic.push(vec![job]).await?;
    let answer = answers.first().ok_or_else(|| Failure::corrupt("the store gave no answer"))?;
    let Some(id) = answer.id() else {
        return Err(Failure::store_full(format!("queue {TOPICS_QUEUE:?} is full"))
            .why("max_jobs or max_bytes of this queue limits its waiting and running jobs")
            .hint("punctual queue show '$topics'    shows its caps; publish again when jobs have ended"));
    };
    let run_at = match answer {
        Enqueued::Inserted { run_at, .. } => Some(*run_at),
        _ => None,
    };
    let (subscribed, now) = (topic.subscriptions().await?.len(), session.now().await?);
    match session.format {
        Format::Json | Format::Ndjson => {
            let run_at_ms = run_at.map(Timestamp::as_ms);
            let status = answer.name();
            json(&mut session.out, &Published { topic: &args.topic, id, status, run_at_ms, subscribed })?;
        }
        Format::Ids => writeln!(session.out, "{id}")?,
        Format::Human | Format::Wide => {
            let due = match run_at {
                Some(at) if now < at => {
                    format!("  due {} ({})", wall(at, now, &session.zone), relative(at, now))
                }
                _ => String::new(),
            };
            let word = match run_at {
                Some(at) if now < at => Status::Scheduled.name(),
                Some(_) => "published",
                None => answer.name(),
            };
            let (kind, topic) = (clean(&args.kind), clean(&args.topic));
            writeln!(session.out, "{word} {}  {kind}  topic {topic}{due}", id.short())?;
        }
    }
    if subscribed == 0 {
        session.say(&format!("warning: no queue is subscribed to {} yet", clean(&args.topic)));
    }
    Ok(())
}
