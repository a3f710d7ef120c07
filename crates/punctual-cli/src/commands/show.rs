//! `punctual show ID`: shows one job and its failed attempts.

use std::{io::Write as _, time::Duration};

use punctual::{
    JobRecord, Payload, State, Timestamp,
    job::{Filter, LogLine, Progress},
    store::{List, wire::JobView},
};

use super::{
    Session,
    ls::{SEARCH_MAX, attempt},
    not_found,
    watch::{self, Watch},
};
use crate::{
    errors::{Failure, Result},
    output::{Format, clean, cut, grouped, json},
    times::{relative, span, wall},
};

/// Characters of a payload that are shown to people.
const PAYLOAD_CHARS: usize = 2_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual show 5c1e9f04
  punctual show 5c1e9f04 --watch
  punctual show 5c1e9f04 -o json --fields state,attempt,last_error")]
pub(crate) struct Show {
    /// Id of the job, or at least six digits of its beginning or end.
    id: String,
    #[command(flatten)]
    watch: Watch,
}

pub(crate) async fn run(session: &mut Session, args: &Show) -> Result {
    // A part of an id is searched for once.
    let id = find(session, &args.id).await?.id;
    watch::look(session, args.watch, async |session| {
        let job = session.client.get(id).await?.ok_or_else(|| not_found(id))?;
        show(session, &job).await
    })
    .await
}

async fn show(session: &mut Session, job: &JobRecord) -> Result {
    let now = session.now().await?;
    let view = JobView::new(job, now).with_details(job);
    match (session.format, session.fields(&JobView::FIELDS)?) {
        (Format::Json | Format::Ndjson, None) => json(&mut session.out, &view)?,
        (Format::Json | Format::Ndjson, Some(fields)) => json(&mut session.out, &fields.pick(&view)?)?,
        (Format::Ids, _) => writeln!(session.out, "{}", job.id)?,
        (Format::Human | Format::Wide, Some(fields)) => {
            fields.table(&[fields.pick(&view)?], now, &session.zone).print(&mut session.out)?;
        }
        (Format::Human | Format::Wide, None) => {
            for line in lines(job, now, session) {
                writeln!(session.out, "{}", clean(&line))?;
            }
        }
    }
    Ok(())
}

/// Finds a job by its id, or by a part of an id that only one of 100,000 jobs has.
pub(super) async fn find(session: &Session, text: &str) -> Result<JobRecord> {
    if let Ok(id) = text.parse() {
        return session.client.get(id).await?.ok_or_else(|| not_found(id));
    }
    // Spaces and commas mean something to a filter, but nothing to an id.
    let filter = Filter::parse(&format!("id:\"{}\"", text.replace(['"', '\\'], "?")))?;
    let mut list = List { filter, after: None, limit: 3 };
    let (mut found, mut searched) = (Vec::new(), 0);
    loop {
        let page = session.client.list(&list).await?;
        searched += page.searched;
        found.extend(page.jobs);
        match page.next {
            Some(next) if found.len() < 3 && searched < SEARCH_MAX => list.after = Some(next),
            _ => break,
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(not_found(text).why(format!("{searched} jobs were searched for this part of an id"))),
        _ => {
            let ids: Vec<String> = found.iter().map(|job| job.id.to_string()).collect();
            Err(Failure::conflict(format!("more than one job has {text} in its id"))
                .hint(format!("write more digits; the jobs are {}", ids.join(" "))))
        }
    }
}

fn lines(job: &JobRecord, now: Timestamp, session: &Session) -> Vec<String> {
    let wall = |at| wall(at, now, &session.zone);
    let mut lines = vec![format!("{}  {}  {}", job.kind, job.id.short(), headline(job, now))];
    let mut line = |name: &str, text: String| lines.push(format!("  {name:<9} {text}"));
    line("id", job.id.to_string());
    let mut place = format!("{:<12} priority {}", job.queue, job.priority);
    for (name, value) in [
        ("group", job.group.clone()),
        ("resource", job.concurrency.as_ref().map(|c| format!("{} (at most {} at once)", c.key, c.limit))),
        ("unique", job.unique.as_ref().map(|u| u.key.clone())),
    ] {
        if let Some(value) = value {
            place += &format!("  {name} {value}");
        }
    }
    line("queue", place);
    line("created", wall(job.created_at));
    // A job that has ended is not due any more.
    if !job.state.is_ended() {
        let mut due = format!("{} ({})", wall(job.run_at), relative(job.run_at, now));
        if let Some(expires_at) = job.expires_at {
            due += &format!("  expires {}", wall(expires_at));
        }
        line("due", due);
    }
    if let Some(started_at) = job.started_at {
        // A job that was due before it was enqueued is late from its enqueue on.
        let late = started_at.since(job.run_at.max(job.created_at));
        line("started", format!("{}  lateness {}", wall(started_at), span(late)));
    }
    if let Some(running) = &job.running {
        let until = relative(running.until, now);
        line(
            "runs",
            format!(
                "with {}, fence {}, lease until {} ({until})",
                running.worker,
                running.fence,
                wall(running.until)
            ),
        );
    }
    if let Some(finished_at) = job.finished_at {
        line("finished", format!("{} ({})", wall(finished_at), relative(finished_at, now)));
    }
    if let Some(reason) = &job.reason {
        line("reason", reason.clone());
    }
    line("policy", format!("timeout {}, backoff {}", span(job.timeout), job.backoff));
    if 0 < job.expired_leases + job.snoozes {
        line("in a row", format!("{} expired leases, {} snoozes", job.expired_leases, job.snoozes));
    }
    for (i, failure) in job.failures.iter().enumerate() {
        let ran = Duration::from_millis(failure.ended_ms.saturating_sub(failure.started_ms));
        let started = wall(Timestamp::saturating_from_ms(failure.started_ms));
        let name = if i == 0 { "attempts" } else { "" };
        line(
            name,
            format!(
                "#{} {started}  ran {}  worker {}  {}",
                failure.attempt,
                span(ran),
                failure.worker,
                failure.error
            ),
        );
    }
    if let Some(progress) = &job.notes.progress {
        line("progress", told(progress));
    }
    for (i, LogLine { attempt, at_ms, text }) in job.notes.log.iter().enumerate() {
        let at = wall(Timestamp::saturating_from_ms(*at_ms));
        line(if i == 0 { "log" } else { "" }, format!("#{attempt} {at}  {text}"));
    }
    if !job.tags.is_empty() {
        line("tags", job.tags.join(", "));
    }
    for (i, (name, value)) in job.headers.iter().enumerate() {
        line(if i == 0 { "headers" } else { "" }, format!("{name}: {value}"));
    }
    line("payload", content(&job.payload));
    if let Some(result) = &job.result {
        line("result", content(result));
    }
    lines
}

/// Bytes as people may read them.
pub(super) fn content(payload: &Payload) -> String {
    let size = format!("{} bytes {}", payload.bytes.len(), payload.content_type);
    let text = std::str::from_utf8(&payload.bytes).map(|text| cut(text, PAYLOAD_CHARS));
    text.map_or(size.clone(), |text| format!("{text}    {size}"))
}

/// `3/10 (30 %)  reading the file`.
pub(super) fn told(progress: &Progress) -> String {
    let Progress { done, total, message } = progress;
    let mut told = match (total, progress.fraction()) {
        (Some(total), Some(fraction)) => {
            format!("{}/{} ({:.0} %)", grouped(*done), grouped(*total), (fraction * 100.0).floor())
        }
        _ => grouped(*done),
    };
    if let Some(message) = message {
        told += &format!("  {message}");
    }
    told
}

/// `retrying, attempt 4/8 in 41s`.
pub(super) fn headline(job: &JobRecord, now: Timestamp) -> String {
    let status = job.status(now);
    match job.state {
        State::Waiting => format!("{status}, attempt {} {}", attempt(job), relative(job.run_at, now)),
        State::Running if job.cancel_requested => {
            format!("{status}, attempt {}, cancel requested", attempt(job))
        }
        State::Running => format!("{status}, attempt {}", attempt(job)),
        State::Done | State::Dead | State::Cancelled => format!("{status} at attempt {}", attempt(job)),
    }
}
