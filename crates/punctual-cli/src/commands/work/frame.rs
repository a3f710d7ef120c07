//! What a worker and a child that stays say to each other: docs/pipe-workers.md.
//!
//! A frame is a header as JSON, with its length in four bytes (big-endian) before it, and then as many bytes as its field `bytes`
//! says, or none.

use std::{borrow::Cow, collections::BTreeMap, io, time::Duration};

use punctual::{
    JobRecord, Outcome, Payload,
    limits::{PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX},
    store::{Enqueued, wire::LINE_BYTES_MAX},
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The version of the protocol. It grows when a child of the version before could misunderstand something.
pub(super) const PROTOCOL: u32 = 1;
/// The most bytes in a header: well above the headers and tags that a job can have.
const HEADER_BYTES_MAX: usize = 256 * 1024;
/// How much of something that is no frame is shown.
const SHOWN_BYTES: usize = 40;
/// What is read at once.
const READ_BYTES: usize = 64 * 1024;

/// What a worker says.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ToChild<'a> {
    /// The first frame.
    Hello {
        protocol: u32,
        version: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        worker: Option<&'a str>,
    },
    /// Run this job. Its payload follows.
    Job {
        /// Names the run in all frames about it. Numbers of a child rise.
        run: u64,
        id: String,
        kind: &'a str,
        queue: &'a str,
        attempt: u32,
        max_attempts: u32,
        fence: u64,
        run_at_ms: u64,
        timeout_ms: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<&'a str>,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        tags: &'a [String],
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        headers: &'a BTreeMap<String, String>,
        content_type: &'a str,
        bytes: usize,
    },
    /// End this run soon: the child is killed otherwise.
    Cancel { run: u64, reason: Why },
    /// End when no run is left.
    Stop {},
    /// What became of a job that the child enqueued.
    Enqueued {
        call: u64,
        #[serde(flatten)]
        answer: &'a Enqueued,
    },
    /// A job that the child enqueued was refused.
    Refused {
        call: u64,
        code: &'a str,
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<&'a str>,
    },
}

/// Why a run has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Why {
    /// It has run for as long as its job may.
    Timeout,
    /// Somebody cancelled the job, or its lease was lost.
    Cancelled,
    /// The worker ends. The job is given back, and no attempt is counted.
    Stop,
}

/// What a child says.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum FromChild {
    /// The first frame: the child can run so many jobs at once.
    Ready {
        protocol: u32,
        #[serde(default = "one")]
        slots: usize,
    },
    Progress {
        run: u64,
        done: Option<u64>,
        total: Option<u64>,
        message: Option<String>,
    },
    Log {
        run: u64,
        text: String,
    },
    /// A result follows, if it has bytes.
    Done {
        run: u64,
        content_type: Option<String>,
        #[serde(default)]
        bytes: usize,
    },
    Retry {
        run: u64,
        error: String,
        after_ms: Option<u64>,
        /// Whether the job's group waits as well, or its queue if it has no group.
        #[serde(default)]
        pause: bool,
    },
    Snooze {
        run: u64,
        after_ms: u64,
    },
    Cancel {
        run: u64,
    },
    Dead {
        run: u64,
        error: String,
    },
    /// A job follows, as a line of `punctual push --batch`.
    Enqueue {
        call: u64,
        bytes: usize,
    },
}

const fn one() -> usize {
    1
}

impl FromChild {
    /// Returns how many bytes follow its header, and how many may.
    const fn bytes(&self) -> (usize, usize) {
        match self {
            // A result that is too large is a verdict, so it is read.
            Self::Done { bytes, .. } => (*bytes, PAYLOAD_BYTES_MAX),
            Self::Enqueue { bytes, .. } => (*bytes, LINE_BYTES_MAX),
            _ => (0, 0),
        }
    }

    /// Returns the run that ends with it, and how.
    pub(super) fn into_verdict(self, body: Vec<u8>) -> Option<(u64, Outcome)> {
        let millis = Duration::from_millis;
        Some(match self {
            Self::Done { run, .. } if body.is_empty() => (run, Outcome::Done),
            Self::Done { run, .. } if RESULT_BYTES_MAX < body.len() => {
                let error =
                    format!("the job was done, but its result has more than {RESULT_BYTES_MAX} bytes");
                (run, Outcome::Dead(error))
            }
            Self::Done { run, content_type, .. } => {
                let content_type = content_type.map_or(Cow::Borrowed(Payload::JSON), Cow::Owned);
                (run, Outcome::DoneWith(Payload { bytes: body, content_type }))
            }
            Self::Retry { run, error, after_ms: Some(after), pause: true } => {
                (run, Outcome::RetryAfter { after: millis(after), error })
            }
            Self::Retry { run, error, after_ms, .. } => {
                (run, Outcome::Retry { after: after_ms.map(millis), error })
            }
            Self::Snooze { run, after_ms } => (run, Outcome::Snooze(millis(after_ms))),
            Self::Cancel { run } => (run, Outcome::Cancel),
            Self::Dead { run, error } => (run, Outcome::Dead(error)),
            Self::Ready { .. } | Self::Progress { .. } | Self::Log { .. } | Self::Enqueue { .. } => {
                return None;
            }
        })
    }
}

impl<'a> ToChild<'a> {
    /// Returns the frame of a job, without its payload.
    pub(super) fn job(run: u64, fence: u64, job: &'a JobRecord) -> Self {
        Self::Job {
            run,
            id: job.id.to_string(),
            kind: &job.kind,
            queue: &job.queue,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            fence,
            run_at_ms: job.run_at.as_ms(),
            timeout_ms: u64::try_from(job.timeout.as_millis()).unwrap_or(u64::MAX),
            group: job.group.as_deref(),
            tags: &job.tags,
            headers: &job.headers,
            content_type: &job.payload.content_type,
            bytes: job.payload.bytes.len(),
        }
    }

    /// Returns the bytes of the frame, up to those that follow its header.
    pub(super) fn encode(&self, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 4];
        serde_json::to_writer(&mut frame, self).expect("invariant: headers are texts and numbers");
        let length = u32::try_from(frame.len() - 4).expect("invariant: a job's fields are below 4 GiB");
        frame[..4].copy_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(body);
        frame
    }
}

/// The frames of a child, as they come.
pub(super) struct Frames<R> {
    from: R,
    /// What was read of the next frames.
    buffer: Vec<u8>,
    /// The frame whose body is awaited, and how many bytes that has.
    header: Option<(FromChild, usize)>,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(super) const fn new(from: R) -> Self {
        Self { from, buffer: Vec::new(), header: None }
    }

    /// Reads the next frame and its body; `None` at the end of the file. Dropped, it loses nothing.
    ///
    /// # Errors
    /// `InvalidData` with what a person can read, for something that is no frame.
    pub(super) async fn next(&mut self) -> io::Result<Option<(FromChild, Vec<u8>)>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(READ_BYTES);
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                let is_whole = self.buffer.is_empty() && self.header.is_none();
                return if is_whole { Ok(None) } else { Err(invalid("it ended within a frame".to_owned())) };
            }
        }
    }

    /// Takes a whole frame out of what was read.
    fn take(&mut self) -> io::Result<Option<(FromChild, Vec<u8>)>> {
        if self.header.is_none() {
            let Some(length) = self.buffer.first_chunk() else { return Ok(None) };
            let end = 4 + u32::from_be_bytes(*length) as usize;
            if 4 + HEADER_BYTES_MAX < end {
                return Err(too_long(&self.buffer));
            }
            let Some(header) = self.buffer.get(4..end) else { return Ok(None) };
            let frame: FromChild =
                serde_json::from_slice(header).map_err(|e| garbage(header, &e.to_string()))?;
            let (bytes, most) = frame.bytes();
            if most < bytes {
                return Err(garbage(header, &format!("at most {most} bytes can follow")));
            }
            self.buffer.drain(..end);
            self.header = Some((frame, bytes));
        }
        let Some((frame, bytes)) = self.header.take_if(|(_, bytes)| *bytes <= self.buffer.len()) else {
            return Ok(None);
        };
        let rest = self.buffer.split_off(bytes);
        Ok(Some((frame, std::mem::replace(&mut self.buffer, rest))))
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn shown(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES)])
}

/// An error about what is too long to be a header: one that is, or a text that was meant for people.
fn too_long(bytes: &[u8]) -> io::Error {
    if bytes.get(4) == Some(&b'{') {
        return invalid(format!(
            "it wrote a header of more than {HEADER_BYTES_MAX} bytes: {}",
            shown(&bytes[4..])
        ));
    }
    invalid(format!("it wrote {:?}, which is no frame; print to stdout or stderr instead", shown(bytes)))
}

fn garbage(bytes: &[u8], why: &str) -> io::Error {
    invalid(format!("it wrote {:?}, which is no frame: {why}", shown(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: &str, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(header.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    async fn read_all(bytes: &[u8]) -> Vec<Result<(FromChild, Vec<u8>), String>> {
        let (mut frames, mut all) = (Frames::new(bytes), Vec::new());
        loop {
            match frames.next().await {
                Ok(Some(one)) => all.push(Ok(one)),
                Ok(None) => return all,
                Err(e) => {
                    all.push(Err(e.to_string()));
                    return all;
                }
            }
        }
    }

    #[tokio::test]
    async fn frames_are_read_one_after_the_other() {
        let mut bytes = frame(r#"{"type":"ready","protocol":1}"#, b"");
        bytes.extend(frame(r#"{"type":"done","run":7,"bytes":3,"content_type":"text/plain"}"#, b"yes"));
        bytes.extend(frame(r#"{"type":"retry","run":8,"error":"e","after_ms":5,"pause":true}"#, b""));
        let all = read_all(&bytes).await;
        assert!(matches!(all[0], Ok((FromChild::Ready { protocol: 1, slots: 1 }, _))));
        let mut verdicts = all.into_iter().skip(1).map(|read| {
            let (frame, body) = read.unwrap();
            frame.into_verdict(body).unwrap()
        });
        let result = Payload { bytes: b"yes".to_vec(), content_type: "text/plain".into() };
        assert_eq!(verdicts.next(), Some((7, Outcome::DoneWith(result))));
        let pause = Duration::from_millis(5);
        assert_eq!(verdicts.next(), Some((8, Outcome::RetryAfter { after: pause, error: "e".into() })));
    }

    #[tokio::test]
    async fn what_is_no_frame_is_named() {
        for (bytes, part) in [
            (b"Hello, world\n".to_vec(), r#""Hello, world\n", which is no frame; print to"#),
            (b"yes\n".to_vec(), r#""yes\n", which is no frame; print to"#),
            (b"\0\x04\0\x01{}".to_vec(), "a header of more than 262144 bytes: {}"),
            (frame(r#"{"type":"don"}"#, b""), "unknown variant"),
            (frame(r#"{"type":"done","run":1,"bites":3}"#, b""), "bites"),
            (frame(r#"{"type":"done","run":1,"bytes":1048577}"#, b""), "can follow"),
            (frame(r#"{"type":"done","run":1,"bytes":3}"#, b"ye"), "within a frame"),
            (frame("{}", b""), "missing field"),
            (b"\0\0".to_vec(), "within a frame"),
            (vec![0, 0, 1, 0, b'{'], "within a frame"),
        ] {
            let all = read_all(&bytes).await;
            let error = all.last().unwrap().as_ref().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
