//! `punctual push --batch`: jobs as lines, receipts as lines.
//!
//! ```text
//! reader thread:  lines ─► jobs ─► batch (≤ 1,000 jobs, ≤ 1 MiB, never waiting for input) ─┐
//!                                                                                     bounded channel
//! this task:      ≤ 4 batches with the store, answers in order ─► receipts, flushed ◄──────┘
//! ```
//!
//! A receipt is printed after its job is durable. A line that is not a valid job gets an error line instead, and the others go on.
//! If the store cannot be reached, the command ends, and lines without a receipt can be pushed again.

mod reader;

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io::Write as _,
    pin::Pin,
    task::Poll,
    time::Instant,
};

use punctual::{Client, Error, ErrorKind, NewJob, store::Enqueued};
use serde::Serialize;
use tokio::sync::mpsc;

use self::reader::{Batch, Lines};
use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{Out, grouped, json},
    times::span,
};

/// Batches that wait to be handed to the store.
const READ_AHEAD: usize = 4;
/// Batches that the store has at once.
const IN_FLIGHT: usize = 4;

/// What became of each job of a batch, or why the store gave no answers.
type Answers = punctual::Result<Vec<punctual::Result<Enqueued>>>;

pub(super) async fn run(session: &mut Session, source: &str) -> Result {
    let (send, mut batches) = mpsc::channel(READ_AHEAD);
    let reader = reader::spawn(source, session.client.clone(), send)?;
    let (begin, mut sum, mut progress) = (Instant::now(), Summary::default(), session.progress());
    let (mut flights, mut open) = (VecDeque::new(), true);
    while open || !flights.is_empty() {
        tokio::select! {
            biased;
            batch = batches.recv(), if open && flights.len() < IN_FLIGHT => match batch {
                Some(batch) => flights.push_back(Flight::begin(&session.client, batch).await),
                None => open = false,
            },
            (lines, answers) = landed(&mut flights), if !flights.is_empty() => {
                sum.print(lines, answers, &mut session.out).map_err(unread)?;
                session.out.flush().map_err(|e| unread(e.into()))?;
                progress.show(|| format!("{} jobs", grouped(sum.jobs())));
            }
        }
    }
    drop(progress);
    reader.join().map_err(|_| Failure::failed("the thread that reads the batch panicked"))??;
    session.say(&sum.text(begin));
    if sum.failed == 0 { Ok(()) } else { Err(Failure::FAILED) }
}

/// Elsewhere a reader that went away ends a command well; here jobs are left without their receipts.
fn unread(failure: Failure) -> Failure {
    failure.if_unread(|| {
        Failure::failed("the receipts could not be printed")
            .why("the reader of stdout went away; jobs without a printed receipt may be enqueued anyway")
            .hint("push these lines again; a line with an id or idempotency_key is enqueued once")
    })
}

/// A batch that the store has.
struct Flight {
    lines: Lines,
    answers: Pin<Box<dyn Future<Output = Answers>>>,
    /// If they came at once.
    known: Option<Answers>,
}

impl Flight {
    /// Hands a batch to the store.
    async fn begin(client: &Client, batch: Batch) -> Self {
        let mut answers: Pin<Box<dyn Future<Output = Answers>>> = Box::pin(push(client.clone(), batch.jobs));
        // Polled once, so that batches reach the store in their order, whichever is waited for first.
        let known = poll_fn(|cx| match answers.as_mut().poll(cx) {
            Poll::Ready(answers) => Poll::Ready(Some(answers)),
            Poll::Pending => Poll::Ready(None),
        });
        let known = known.await;
        Self { lines: batch.lines, answers, known }
    }
}

/// The answers of the batch that was handed over first. Loses nothing when it is dropped while it waits.
async fn landed(flights: &mut VecDeque<Flight>) -> (Lines, Answers) {
    let first = flights.front_mut().expect("invariant: asked for only while there is one");
    let answers = match first.known.take() {
        Some(answers) => answers,
        None => first.answers.as_mut().await,
    };
    let first = flights.pop_front().expect("invariant: it was there before");
    (first.lines, answers)
}

/// An answer for every job, or why the store gave none.
async fn push(client: Client, jobs: Vec<NewJob>) -> Answers {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    // A refused call wrote nothing, and does not name the job at fault: so each job is pushed by itself.
    match client.push(jobs.clone()).await {
        Ok(answers) => Ok(answers.into_iter().map(Ok).collect()),
        Err(e) if is_about_a_job(&e) => {
            let mut answers = Vec::with_capacity(jobs.len());
            for job in jobs {
                match client.push(vec![job]).await {
                    Ok(answer) => answers.extend(answer.into_iter().map(Ok)),
                    Err(e) if is_about_a_job(&e) => answers.push(Err(e)),
                    Err(e) => return Err(e),
                }
            }
            Ok(answers)
        }
        Err(e) => Err(e),
    }
}

/// Whether the job is at fault, and another one may be accepted.
fn is_about_a_job(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Invalid | ErrorKind::TooLarge | ErrorKind::Conflict)
}

/// A line of answer for a line that became no job.
#[derive(Serialize)]
struct Refusal<'a> {
    line: u64,
    status: &'static str,
    code: &'a str,
    message: &'a str,
}

#[derive(Debug, Default)]
struct Summary {
    inserted: u64,
    duplicate: u64,
    replaced: u64,
    rescheduled: u64,
    failed: u64,
}

impl Summary {
    const fn jobs(&self) -> u64 {
        self.inserted + self.duplicate + self.replaced + self.rescheduled + self.failed
    }

    /// Prints the answers of a batch, a line for each of its lines.
    fn print(&mut self, lines: Lines, answers: Answers, out: &mut Out) -> Result {
        let first = lines.first().map_or(0, |(line, _)| *line);
        let answers = answers.map_err(|e| {
            Failure::from(e)
                .why(format!("lines from {first} on have no receipt"))
                .hint("push these lines again; a line with an id or idempotency_key is enqueued once")
        })?;
        let mut answers = answers.into_iter();
        for (line, refused) in lines {
            let answer = match refused {
                Some(e) => Err(e),
                None => {
                    answers.next().ok_or_else(|| Failure::corrupt("the store returned too few answers"))?
                }
            };
            match answer {
                Ok(Enqueued::Full) => {
                    self.refuse(out, line, "store_full", "the queue is full (max_jobs or max_bytes)")?;
                }
                Ok(Enqueued::Conflict { id }) => {
                    self.refuse(out, line, "conflict", &format!("a job of another queue has the id {id}"))?;
                }
                Ok(answer) => {
                    *match answer {
                        Enqueued::Inserted { .. } => &mut self.inserted,
                        Enqueued::Duplicate(_) => &mut self.duplicate,
                        Enqueued::Replaced { .. } => &mut self.replaced,
                        Enqueued::Rescheduled { .. } | Enqueued::Full | Enqueued::Conflict { .. } => {
                            &mut self.rescheduled
                        }
                    } += 1;
                    if let Some(id) = answer.id() {
                        writeln!(out, "{{\"id\":\"{id}\",\"status\":\"{}\"}}", answer.name())?;
                    }
                }
                Err(e) => {
                    let hint = e.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
                    self.refuse(out, line, e.kind().code(), &format!("{e}{hint}"))?;
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, out: &mut Out, line: u64, code: &str, message: &str) -> Result {
        self.failed += 1;
        Ok(json(out, &Refusal { line, status: "error", code, message })?)
    }

    fn text(&self, begin: Instant) -> String {
        let mut text =
            format!("{} inserted, {} duplicate, ", grouped(self.inserted), grouped(self.duplicate));
        for (n, word) in [(self.replaced, "replaced"), (self.rescheduled, "rescheduled")] {
            if 0 < n {
                text += &format!("{} {word}, ", grouped(n));
            }
        }
        text + &format!("{} failed · {}", grouped(self.failed), span(begin.elapsed()))
    }
}
