//! `punctual forward`: sends due jobs to other systems, and acks them after these confirmed.

use std::{
    convert::Infallible,
    error::Error as _,
    io::{self, Write as _},
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use punctual::{
    Client, ErrorKind, JobRecord, NewJob, Payload, Worker,
    job::parse_duration,
    worker::{Health, Shutdown, WorkReport},
};
use punctual_forward::{Counts, Forwarder, Target};
use serde::Serialize;

use super::{Session, health::HealthArgs};
use crate::{
    args::{Command, Globals},
    config, descriptors,
    errors::{Failure, Result},
    output::{Format, Out, clean, counted, cut, grouped, json},
    requests::Requests,
};

/// Jobs that are sent at once, by default.
pub(crate) const SLOTS: usize = 256;
/// Time between two updates of the progress.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two checks of a receiver that does not accept this client.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How much of what went wrong is shown while it runs.
const TROUBLE_CHARS: usize = 60;
/// The kind of the job that `--test` hands over.
const TEST_KIND: &str = "punctual.test";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Addresses: amqp://USER:PASSWORD@HOST/VHOST?exchange=E&routing_key=K   RabbitMQ (amqps:// with TLS)
           nats://HOST:4222?subject=S                                 a stream of NATS JetStream
           redis://HOST/0?stream=S&maxlen=N                           a Redis stream
           https://HOST/PATH, or webhook:{header.NAME}                a webhook
Exchange, key, subject, stream and webhook can contain {kind} {queue} {id} {group} {priority} {attempt} {header.NAME} and \
{tag.NAME}, which are replaced by the fields of the job.

Without --to, the command runs all [[forward]] tables of the configuration file. Their keys are from, to or to_file, slots, \
secret_file, secret_env, headers, ca_file, cert_file, key_file and allow_private.

A job is done when the receiver confirmed it. It is sent at least once, always with the same message id.

Examples:
  punctual forward -q orders --to 'amqp://app:secret@rabbit/%2f?exchange=orders&routing_key={kind}'
  punctual forward -q hooks --to https://example.com/hook --secret-file hook.secret
  punctual forward --config punctual.toml --test")]
pub(crate) struct Forward {
    /// Queue whose jobs are sent (default: default).
    #[arg(short, long, value_name = "QUEUE", requires = "to")]
    queue: Option<String>,
    /// Address of the receiver (default: the configuration file's).
    #[arg(long, env = "PUNCTUAL_FORWARD_TO", hide_env_values = true, value_name = "ADDRESS")]
    to: Option<String>,
    /// Number of jobs that are sent at once (default: 256).
    #[arg(long, value_name = "N", requires = "to")]
    slots: Option<usize>,
    /// File with the secret that signs webhooks, `whsec_…` as in Standard Webhooks; two secrets while one is replaced. With
    /// webhook:{header.NAME}, its name must contain a field: /run/secrets/{header.endpoint}.
    #[arg(long, value_name = "FILE", requires = "to")]
    secret_file: Option<String>,
    /// Environment variable with that secret.
    #[arg(long, value_name = "NAME", requires = "to", conflicts_with = "secret_file")]
    secret_env: Option<String>,
    /// Header of each request to a webhook; may be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header, requires = "to")]
    headers: Vec<(String, String)>,
    /// File with certificate authorities (PEM) to trust in addition to the system's; for NATS, instead of them.
    #[arg(long, value_name = "FILE", requires = "to")]
    ca_file: Option<PathBuf>,
    /// File with the client certificate (PEM) for RabbitMQ, NATS or a webhook, followed by its chain.
    #[arg(long, value_name = "FILE", requires = "to", requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// File with the key of that certificate (PEM, unencrypted).
    #[arg(long, value_name = "FILE", requires = "to", requires = "cert_file")]
    key_file: Option<PathBuf>,
    /// Allow webhooks in a private network, on this machine, or without TLS.
    #[arg(long, requires = "to")]
    allow_private: bool,
    /// Send one test job to each receiver, print the answers, and end.
    #[arg(long)]
    test: bool,
    /// Time for jobs on their way to finish after the process was asked to stop (default: 30 s).
    #[arg(long, value_parser = parse_duration, default_value = "30s", hide_default_value = true, value_name = "DURATION")]
    grace: Duration,
    #[command(flatten)]
    pub(super) health: HealthArgs,
}

/// A header of the command line. Its value may be a secret, which no error shows.
fn header(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A queue and where its jobs go.
struct Route {
    from: String,
    slots: usize,
    forwarder: Forwarder,
    /// Whether its worker runs.
    begun: AtomicBool,
}

impl Forward {
    /// What to forward: of the command line, else of the file.
    fn forwards(&self, globals: &Globals) -> Result<Vec<config::Forward>> {
        let Some(to) = &self.to else {
            let Some(found) = &globals.configured else { return Err(config::nowhere()) };
            return Ok(found.config.forward.clone());
        };
        let forward = config::Forward {
            from: self.queue.clone().unwrap_or_else(|| "default".to_owned()),
            to: Some(to.clone()),
            to_file: None,
            slots: self.slots,
            secret_file: self.secret_file.clone(),
            secret_env: self.secret_env.clone(),
            headers: self.headers.iter().cloned().collect(),
            ca_file: self.ca_file.clone(),
            cert_file: self.cert_file.clone(),
            key_file: self.key_file.clone(),
            allow_private: self.allow_private,
        };
        Ok(vec![forward])
    }
}

/// Where jobs go: what can be known before the store is open is checked.
struct Plan {
    routes: Vec<Route>,
}

impl Plan {
    fn of(globals: &Globals, args: &Forward) -> Result<Self> {
        let forward = args.forwards(globals)?;
        if forward.is_empty() {
            return Err(Failure::invalid("the configuration file has no [[forward]] table")
                .hint("add [[forward]] with from = \"QUEUE\" and to = \"amqp://…\""));
        }
        let routes = forward.into_iter().map(Route::of).collect::<Result<Vec<_>>>()?;
        for (at, route) in routes.iter().enumerate() {
            if routes[..at].iter().any(|other| other.from == route.from) {
                return Err(Failure::invalid(format!("queue {} is forwarded twice", route.from))
                    .why("each job of a queue is sent to one receiver only")
                    .hint(
                        "publish to a topic, subscribe one queue for each receiver, and forward these queues",
                    ));
            }
        }
        Ok(Self { routes })
    }
}

impl Route {
    fn of(forward: config::Forward) -> Result<Self> {
        let config::Forward { from, to, to_file, slots, secret_file, secret_env, headers, .. } = forward;
        let config::Forward { ca_file, cert_file, key_file, allow_private, .. } = forward;
        let whose = |failure: Failure| failure.why(format!("in the [[forward]] table of queue {from}"));
        let to = match (to, to_file) {
            (Some(to), None) => to,
            (None, Some(file)) => config::secret(&file)?,
            _ => {
                return Err(whose(Failure::invalid("a [[forward]] table needs to or to_file, and not both")));
            }
        };
        let mut target = Target::parse(&to).map_err(|error| whose(error.into()))?;
        match (secret_file, secret_env) {
            (None, None) => {}
            (Some(file), None) => target = target.signed_by_file(file),
            (None, Some(name)) => target = target.signed_by_env(name),
            (Some(_), Some(_)) => {
                return Err(whose(Failure::invalid(
                    "a [[forward]] table takes secret_file or secret_env, not both",
                )));
            }
        }
        for (name, value) in headers {
            target = target.header(name, value);
        }
        if let Some(file) = ca_file {
            target = target.ca_file(file);
        }
        match (cert_file, key_file) {
            (None, None) => {}
            (Some(cert), Some(key)) => target = target.client_certificate(cert, key),
            _ => {
                return Err(whose(Failure::invalid(
                    "a [[forward]] table needs both cert_file and key_file, or neither",
                )));
            }
        }
        if allow_private {
            target = target.allow_private();
        }
        let forwarder = target.forwarder().map_err(|error| whose(error.into()))?;
        Ok(Self { from, slots: slots.unwrap_or(SLOTS), forwarder, begun: AtomicBool::new(false) })
    }

    /// What its health is about.
    fn about(&self) -> String {
        format!("queue {}", self.from)
    }

    /// Checks that the receiver accepts this client. If it cannot be reached now, that is no error: jobs wait.
    async fn check(&self, session: &Session) -> Result {
        let Err(error) = self.forwarder.check().await else { return Ok(()) };
        let to = self.forwarder.shown();
        if error.kind() == ErrorKind::Unavailable {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            session.say(&format!("{error}{cause}. Jobs for {to} wait until it can be reached"));
            return Ok(());
        }
        Err(Failure::from(error).why(format!("forwarding from queue {} to {to}", self.from)))
    }

    /// Forwards as soon as the receiver accepts this client. Until then this route waits, and the others go on. If no route can start,
    /// the first check ends them all.
    async fn run(
        &self,
        session: &Session,
        start: &Start,
        shutdown: &Shutdown,
        grace: Duration,
        health: &Health,
    ) -> Result<WorkReport> {
        let mut said = None;
        loop {
            let look = tokio::select! {
                look = self.check(session) => look,
                () = shutdown.graceful.cancelled() => return Ok(WorkReport::default()),
            };
            let Err(failure) = look else { break };
            if said.is_none() && start.all_are_wrong() {
                return Err(failure);
            }
            let text = failure.to_string();
            health.note(&self.about(), Some(first_line(&text)));
            if said.as_ref() != Some(&text) {
                session.say(&format!("{text}  queue {} waits; the next try is in {LOOK_AGAIN:?}", self.from));
                said = Some(text);
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = shutdown.graceful.cancelled() => return Ok(WorkReport::default()),
            }
        }
        health.note(&self.about(), None);
        let Self { from, slots, forwarder, begun } = self;
        begun.store(true, Relaxed);
        session.say(&format!("forwarding queue {from} to {} ({slots} at once)", forwarder.shown()));
        // A slow one holds up its own queue only; publications to topics are handed out by one of them.
        let worker = Worker::new(&session.client)
            .queue(from)
            .slots(*slots)
            .shutdown_grace(grace)
            .serve_topics(start.is_first())
            .health(health)
            .forwarding(forwarder.report())
            .handle_raw(forwarder.handler());
        #[cfg(feature = "otel")]
        let worker = worker.continue_trace(session.continues_traces);
        Ok(worker.run_until(shutdown.clone()).await?)
    }
}

/// What an error says before it explains itself.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// How the routes of a process begin.
struct Start {
    routes: usize,
    wrong: AtomicUsize,
    begun: AtomicBool,
}

impl Start {
    const fn of(routes: usize) -> Self {
        Self { routes, wrong: AtomicUsize::new(0), begun: AtomicBool::new(false) }
    }

    /// One more can't begin: whether none can.
    fn all_are_wrong(&self) -> bool {
        self.wrong.fetch_add(1, Relaxed) + 1 == self.routes
    }

    /// One more begins: whether it is the first.
    fn is_first(&self) -> bool {
        !self.begun.swap(true, Relaxed)
    }
}

/// Turns signals into a shutdown. After the first, jobs on their way may arrive within the grace period; the second ends at once.
async fn end(mut requests: Requests, shutdown: &Shutdown) -> Infallible {
    requests.next().await;
    shutdown.graceful.cancel();
    requests.next().await;
    shutdown.now.cancel();
    std::future::pending().await
}

/// Forwards until the process is asked to end.
pub(super) async fn run(globals: Globals, command: &Command, args: &Forward) -> Result {
    let plan = Plan::of(&globals, args)?;
    if args.test {
        return test(&mut Out::new(io::stdout()), globals.format(), &plan.routes).await;
    }
    let requests = Requests::listen()?;
    let session = &mut Session::open(&globals, command).await?;
    super::check_served(&session.client, plan.routes.iter().map(|route| route.from.as_str())).await?;
    descriptors::raise();
    let health = args.health.health();
    let _reporting = health.start().await?;
    let listening = args.health.listen(&mut session.client, &health)?;
    super::health::say(session, listening.as_ref());
    let start = Start::of(plan.routes.len());
    let shutdown = Shutdown::default();
    let workers = plan.routes.iter().map(|route| route.run(session, &start, &shutdown, args.grace, &health));
    let reports = tokio::select! {
        reports = try_join_all(workers) => reports?,
        never = watch(session, &plan.routes, &health) => match never {},
        never = end(requests, &shutdown) => match never {},
    };
    for (route, report) in plan.routes.iter().zip(&reports) {
        let ended = Ended::of(route, report);
        if session.format.is_json() {
            session.report(&ended).await?;
        } else {
            session.say(&ended.told());
        }
    }
    Ok(())
}

/// Shows the progress of the routes.
async fn watch(session: &Session, routes: &[Route], health: &Health) -> Infallible {
    let mut progress = session.progress();
    let mut before: Vec<u64> = routes.iter().map(|route| route.forwarder.counts().forwarded).collect();
    let mut looked = Instant::now();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let counts: Vec<Counts> = routes.iter().map(|route| route.forwarder.counts()).collect();
        for (route, counts) in routes.iter().zip(&counts).filter(|(route, _)| route.begun.load(Relaxed)) {
            // A job that is sent again holds up its queue; a refused job does not.
            let trouble = counts.trouble.as_deref().filter(|_| 0 < counts.in_flight);
            health.note(&route.about(), trouble.map(clean).as_deref());
        }
        let (each, now) = (looked.elapsed().as_secs_f64(), Instant::now());
        progress.show(|| {
            let all = routes.iter().zip(&counts).zip(&before);
            let texts = all.map(|((route, counts), before)| {
                let rate = (counts.forwarded - before) as f64 / each;
                let mut text = format!(
                    "{}: {} forwarded, {rate:.0}/s, {} on their way",
                    route.from,
                    grouped(counts.forwarded),
                    counts.in_flight
                );
                if let Some(trouble) = &counts.trouble {
                    text += &format!(" · {}", cut(&clean(trouble), TROUBLE_CHARS));
                }
                text
            });
            texts.collect::<Vec<_>>().join(" · ")
        });
        before = counts.iter().map(|counts| counts.forwarded).collect();
        looked = now;
    }
}

/// Sends one test job to each receiver.
async fn test(out: &mut Out, format: Format, routes: &[Route]) -> Result {
    let mut failed = 0;
    for route in routes {
        let (client, job) = test_job(&route.from).await?;
        let error = route.forwarder.send(&client, &job).await.err();
        failed += u64::from(error.is_some());
        let (from, to, confirmed) = (&route.from, route.forwarder.shown(), error.is_none());
        let tested = Tested { from, to, id: job.id.to_string(), confirmed, error };
        if format.is_json() {
            json(out, &tested)?;
        } else {
            writeln!(out, "{}", tested.told())?;
        }
    }
    out.flush()?;
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::failed(format!("{} did not accept the test job", counted(failed, "receiver"))))
}

/// Makes a test job, which is in no store.
async fn test_job(queue: &str) -> Result<(Client, JobRecord)> {
    let client = Client::connect("memory:").await?;
    let id = client.make_id();
    client.push(vec![NewJob::new(id, TEST_KIND, queue, Payload::json(r#"{"test":true}"#))]).await?;
    let job = client.get(id).await?.ok_or_else(|| super::not_found(id))?;
    Ok((client, job))
}

/// The result of a test job.
#[derive(Serialize)]
struct Tested<'a> {
    from: &'a str,
    to: &'a str,
    id: String,
    confirmed: bool,
    error: Option<String>,
}

impl Tested<'_> {
    fn told(&self) -> String {
        let Self { from, to, id, error, .. } = self;
        let answer =
            error.as_deref().map_or_else(|| "confirmed".to_owned(), |error| format!("failed: {error}"));
        format!("{from} → {to}  {id}  {}", clean(&answer))
    }
}

/// What was forwarded from a queue.
#[derive(Serialize)]
struct Ended<'a> {
    from: &'a str,
    to: &'a str,
    forwarded: u64,
    refused: u64,
    again: u64,
    dead: u64,
    lost: u64,
    lateness_p50_ms: u128,
    lateness_p99_ms: u128,
    lateness_max_ms: u128,
}

impl<'a> Ended<'a> {
    fn of(route: &'a Route, report: &WorkReport) -> Self {
        let (Counts { forwarded, refused, again, .. }, lateness) =
            (route.forwarder.counts(), &report.lateness);
        Self {
            from: &route.from,
            to: route.forwarder.shown(),
            forwarded,
            refused,
            again,
            dead: report.dead,
            lost: report.lost,
            lateness_p50_ms: lateness.quantile(0.5).as_millis(),
            lateness_p99_ms: lateness.quantile(0.99).as_millis(),
            lateness_max_ms: lateness.max().as_millis(),
        }
    }

    fn told(&self) -> String {
        let counts = [(self.refused, "refused"), (self.again, "sent again"), (self.dead, "dead")];
        let counts = counts.iter().filter(|(n, _)| 0 < *n);
        let mut text = format!("{} → {}: {} forwarded", self.from, self.to, grouped(self.forwarded));
        for (n, word) in counts {
            text += &format!(", {} {word}", grouped(*n));
        }
        text
    }
}
