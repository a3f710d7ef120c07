//! Reads lines on a thread of its own and gathers their jobs into batches.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    thread::JoinHandle,
};

use punctual::{
    Client, Error, ErrorKind, JobId, NewJob,
    limits::{BATCH_BYTES_MAX, BATCH_MAX},
    store::wire::{self, LINE_BYTES_MAX},
};
use tokio::sync::mpsc;

use crate::errors::{Failure, Result};

/// What is asked of the system at once.
const READ_BYTES: usize = 256 * 1024;

/// The numbers of lines, and what was wrong with those that are no job.
pub(super) type Lines = Vec<(u64, Option<Error>)>;

/// Lines that go to the store together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) lines: Lines,
    /// The jobs of the other lines, in the same order.
    pub(super) jobs: Vec<NewJob>,
    bytes: usize,
}

/// Starts to read; `source` is a file, or `-` for stdin.
pub(super) fn spawn(source: &str, client: Client, send: mpsc::Sender<Batch>) -> Result<JoinHandle<Result>> {
    let input: Box<dyn Read + Send> = if source == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(source).map_err(|e| {
            Failure::invalid(format!("could not open the batch {source:?}")).why(e.to_string())
        })?)
    };
    let read = move || {
        // Without a receiver, the rest is not needed.
        let deliver = |batch| send.blocking_send(batch).is_ok();
        Ok(gather(BufReader::with_capacity(READ_BYTES, input), || client.make_id(), deliver)?)
    };
    Ok(std::thread::Builder::new().name("batch reader".into()).spawn(read)?)
}

/// Reads to the end, delivering batches that are full, and whatever there is before a read that may have to wait.
fn gather<R: Read>(
    mut input: BufReader<R>,
    make_id: impl Fn() -> JobId,
    deliver: impl Fn(Batch) -> bool,
) -> io::Result<()> {
    let (mut line, mut number, mut batch) = (Vec::new(), 0, Batch::default());
    loop {
        if !batch.lines.is_empty() && !input.buffer().contains(&b'\n') && !deliver(std::mem::take(&mut batch))
        {
            return Ok(());
        }
        line.clear();
        if (&mut input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        number += 1;
        let job = if LINE_BYTES_MAX < line.len() && line.last() != Some(&b'\n') {
            skip_line(&mut input)?;
            Err(Error::new(
                ErrorKind::TooLarge,
                format!("the line is over the limit of {LINE_BYTES_MAX} bytes"),
            ))
        } else if line.trim_ascii().is_empty() {
            continue;
        } else {
            parse(line.trim_ascii_end(), &make_id)
        };
        if !batch.has_room(&job) && !deliver(std::mem::take(&mut batch)) {
            return Ok(());
        }
        batch.add(number, job);
    }
    if !batch.lines.is_empty() {
        deliver(batch);
    }
    Ok(())
}

fn parse(line: &[u8], make_id: impl FnOnce() -> JobId) -> punctual::Result<NewJob> {
    let text = std::str::from_utf8(line).map_err(|e| {
        Error::invalid(format!("the line is not UTF-8 (byte {})", e.valid_up_to() + 1))
            .with_hint("put bytes that are not text into payload_base64")
    })?;
    wire::job(text, make_id)
}

/// Skips the rest of a line without keeping it.
fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        let (used, ended) = match buffer.iter().position(|b| *b == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(used);
        if ended {
            return Ok(());
        }
    }
}

impl Batch {
    fn has_room(&self, job: &punctual::Result<NewJob>) -> bool {
        let bytes = job.as_ref().map_or(0, |job| job.payload.bytes.len());
        self.lines.len() < BATCH_MAX && (self.jobs.is_empty() || self.bytes + bytes <= BATCH_BYTES_MAX)
    }

    fn add(&mut self, number: u64, job: punctual::Result<NewJob>) {
        match job {
            Ok(job) => {
                self.bytes += job.payload.bytes.len();
                self.jobs.push(job);
                self.lines.push((number, None));
            }
            Err(e) => self.lines.push((number, Some(e))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::VecDeque};

    use punctual::job::IdMaker;

    use super::*;

    /// Gives its pieces one read at a time.
    struct Pieces(VecDeque<Vec<u8>>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some(mut piece) = self.0.pop_front() else { return Ok(0) };
            let n = piece.len().min(buffer.len());
            buffer[..n].copy_from_slice(&piece[..n]);
            if n < piece.len() {
                self.0.push_front(piece.split_off(n));
            }
            Ok(n)
        }
    }

    fn batches(pieces: impl IntoIterator<Item = Vec<u8>>) -> Vec<Batch> {
        let (ids, got) = (RefCell::new(IdMaker::default()), RefCell::new(Vec::new()));
        let input = BufReader::with_capacity(READ_BYTES, Pieces(pieces.into_iter().collect()));
        let deliver = |batch| {
            got.borrow_mut().push(batch);
            true
        };
        gather(input, || ids.borrow_mut().make(1, 0, 0), deliver).unwrap();
        got.into_inner()
    }

    fn numbers(batch: &Batch) -> Vec<u64> {
        batch.lines.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn what_is_there_never_waits_for_more() {
        let one = b"{\"kind\":\"a\"}\n".to_vec();
        let got = batches([
            one.clone(),
            [one.clone(), one.clone(), b"{\"ki".to_vec()].concat(),
            b"nd\":\"b\"}".to_vec(),
        ]);
        assert_eq!(got.iter().map(numbers).collect::<Vec<_>>(), [vec![1], vec![2, 3], vec![4]]);
        assert_eq!(got[2].jobs[0].kind, "b", "the last line needs no line break");
    }

    #[test]
    fn a_batch_is_bounded_in_jobs_and_bytes() {
        let many = b"{\"kind\":\"a\"}\n".repeat(2_500);
        assert_eq!(batches([many]).iter().map(|b| b.jobs.len()).max(), Some(1_000));
        let large = format!("{{\"kind\":\"a\",\"payload\":\"{}\"}}\n", "x".repeat(600 * 1024)).into_bytes();
        assert_eq!(batches([large.repeat(3)]).iter().map(|b| b.jobs.len()).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn bad_lines_are_refused_in_their_place_and_blank_ones_skipped() {
        let long = vec![b'x'; LINE_BYTES_MAX + 10];
        let text =
            [b"{\"kind\":\"a\"}\n\n\xff\n".as_slice(), &long, b"\n{\"kind\":\"b\"}\nnonsense\n"].concat();
        let lines: Vec<_> = batches([text]).into_iter().flat_map(|batch| batch.lines).collect();
        let shown: Vec<_> = lines.iter().map(|(n, e)| (*n, e.as_ref().map(|e| e.kind().code()))).collect();
        assert_eq!(
            shown,
            [
                (1, None),
                (3, Some("invalid")),
                (4, Some("payload_too_large")),
                (5, None),
                (6, Some("invalid"))
            ]
        );
    }
}
