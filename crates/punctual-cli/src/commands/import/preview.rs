//! `--dry-run`: prints the number of entries, and the first three as jobs. Writes nothing.

use std::{
    io::{self, Write as _},
    time::SystemTime,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use punctual::{NewJob, Payload, Timestamp, When};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    keys::{self, Source},
    layout::{Layout, ListKeys, Sorted},
    list,
    making::{Made, Maker, sample},
    server::{Server, only},
    sorted::{self, check_unit},
};
use crate::{
    args::Globals,
    errors::Result,
    output::{Format, Out, clean, counted, grouped, json},
    times::{relative, wall, zone},
};

/// Entries that are shown of each source.
const SHOWN: usize = 3;
/// The owner of a dry run, which imports nothing.
const NOBODY: &str = "";

/// All of it, as JSON.
#[derive(Serialize)]
struct Preview {
    entries: u64,
    sources: Vec<Part>,
}

/// One source.
#[derive(Serialize)]
struct Part {
    key: String,
    entries: u64,
    first: Vec<Shown>,
}

/// An entry that would become a job, or wouldn't.
#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    Job {
        kind: String,
        queue: String,
        /// `null`: due when it comes over.
        run_at_ms: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        payload: Option<Box<RawValue>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        payload_base64: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        imported_id: Option<String>,
        #[serde(skip)]
        sample: String,
    },
    Refused {
        entry: String,
        refused: String,
    },
}

pub(super) async fn run(globals: &Globals, server: &Server, layout: &Layout) -> Result {
    let zone = zone(&globals.tz)?;
    let mut parts = Vec::new();
    for source in keys::find(server, layout).await? {
        let maker = Maker::new(&layout.shape, &source, "0")?;
        parts.push(if source.is_list {
            of_list(server, layout.lists.as_ref().expect("invariant: it has a list"), &source, &maker).await?
        } else {
            of_sorted(
                server,
                layout.sorted.as_ref().expect("invariant: it has a sorted set"),
                &source,
                &maker,
            )
            .await?
        });
    }
    let entries = parts.iter().map(|part| part.entries).sum();
    let mut out = Out::new(std::io::stdout());
    if matches!(globals.format(), Format::Json | Format::Ndjson) {
        json(&mut out, &Preview { entries, sources: parts })?;
        return Ok(out.flush()?);
    }
    let now = Timestamp::try_from(SystemTime::now())?;
    for part in &parts {
        writeln!(out, "{}  {}", clean(&part.key), entry_count(part.entries))?;
        for shown in &part.first {
            match shown {
                Shown::Job { kind, queue, run_at_ms, sample, .. } => {
                    let due = match run_at_ms.map(Timestamp::saturating_from_ms) {
                        Some(at) if now < at => {
                            format!("due {} ({})", wall(at, now, &zone), relative(at, now))
                        }
                        _ => "due at once".to_owned(),
                    };
                    writeln!(out, "  {}  queue {}  {due}  {}", clean(kind), clean(queue), clean(sample))?;
                }
                Shown::Refused { entry, refused } => {
                    writeln!(out, "  refused: {}: {}", clean(entry), clean(refused))?;
                }
            }
        }
    }
    out.flush()?;
    if !globals.quiet {
        let (entries, keys) = (entry_count(entries), counted(parts.len() as u64, "key"));
        // Nobody is left to talk to when stderr is gone.
        let _ = writeln!(io::stderr(), "{entries} in {keys}; nothing was written");
    }
    Ok(())
}

fn entry_count(n: u64) -> String {
    if n == 1 { "1 entry".to_owned() } else { format!("{} entries", grouped(n)) }
}

async fn of_sorted(server: &Server, layout: &Sorted, source: &Source, maker: &Maker<'_>) -> Result<Part> {
    check_unit(server, source, layout.unit).await?;
    let entries: u64 = server.say(redis::cmd("ZCARD").arg(&source.key)).await?;
    let look = server.look(source, NOBODY, &layout.body, 0, SHOWN);
    let found = sorted::Found::read(only(server.run(&[look]).await?)?)?;
    let job = |entry: &sorted::Entry| Shown::of(entry.job(maker, layout, found.round), entry.shown());
    Ok(Part { key: source.key.clone(), entries, first: found.entries.iter().map(job).collect() })
}

async fn of_list(server: &Server, layout: &ListKeys, source: &Source, maker: &Maker<'_>) -> Result<Part> {
    let (aside, key) = (source.aside(), source.key.clone());
    let length = async |list: &str| server.say::<u64>(redis::cmd("LLEN").arg(list)).await;
    let (moved, waiting) = (length(&aside).await?, length(&key).await?);
    let popped = match &layout.backup {
        Some(backup) => popped(server, backup).await?,
        None => 0,
    };
    let first = if 0 < moved { &aside } else { &key };
    let peek = server.peek(source, first, NOBODY, layout.next, layout.context.as_deref(), SHOWN);
    let found = list::Found::read(only(server.run(&[peek]).await?)?)?;
    let job = |element: &list::Element| Shown::of(element.job(maker, layout, 0), element.shown());
    Ok(Part { entries: moved + waiting + popped, first: found.elements.iter().map(job).collect(), key })
}

/// How many were popped and not acknowledged.
async fn popped(server: &Server, backup: &str) -> Result<u64> {
    let kind: String = server.say(redis::cmd("TYPE").arg(backup)).await?;
    let count = match kind.as_str() {
        "hash" => "HLEN",
        "set" => "SCARD",
        "zset" => "ZCARD",
        "list" => "LLEN",
        _ => return Ok(0),
    };
    server.say(redis::cmd(count).arg(backup)).await
}

impl Shown {
    fn of(made: Made, entry: String) -> Self {
        match made {
            Ok(job) => Self::job(job),
            Err(refused) => Self::Refused { entry, refused },
        }
    }

    fn job(mut job: NewJob) -> Self {
        let bytes = job.payload.bytes;
        let is_json = job.payload.content_type == Payload::JSON;
        let text = String::from_utf8(bytes.clone()).ok().filter(|_| is_json);
        let payload = text.and_then(|text| RawValue::from_string(text).ok());
        Self::Job {
            run_at_ms: match job.run_at {
                When::At(at) => Some(at.as_ms()),
                _ => None,
            },
            payload_base64: if payload.is_some() { None } else { Some(BASE64.encode(&bytes)) },
            payload,
            imported_id: job.headers.remove("imported_id"),
            sample: sample(&bytes),
            kind: job.kind,
            queue: job.queue,
        }
    }
}
