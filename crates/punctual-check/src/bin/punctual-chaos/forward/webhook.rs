//! The drill on a receiver of webhooks that is down, slow, busy, broken, or has moved.

use std::{io, net::Ipv4Addr, path::PathBuf, sync::Arc, time::Duration};

use punctual::{ErrorKind, JobId};
use punctual_forward::Target;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use super::{
    arrivals::Arrivals,
    judge::judge,
    scene::{Bad, SLOTS, Scene},
    wall_us,
};
use crate::{broker::free_port, drill::Outcome, profile::Profile};

/// Where jobs go to, and where they are sent on to.
const PATH: &str = "/orders";
const MOVED: &str = "/moved";
/// How long a slow receiver thinks.
const THINKS: Duration = Duration::from_secs(1);
/// How long any thinks before it refuses a job, so that a kill meets last attempts of such jobs.
const REFUSES: Duration = Duration::from_millis(250);
/// How long a busy one wants to be left alone, in seconds.
const BUSY_S: u64 = 2;

/// How the receiver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Well,
    Down,
    Slow,
    Busy,
    Broken,
    Moved,
}

/// When what happens after the first job is due: each for so long, and so far apart.
struct Plan {
    over: Duration,
    bad: Duration,
    /// In the middle of the last attempts of jobs that are refused.
    kill: Duration,
    moods: [(Mood, Duration, Duration, &'static str); 5],
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const FULL: Plan = Plan {
    over: Duration::from_mins(1),
    bad: ms(1_000),
    kill: ms(1_650),
    moods: [
        (Mood::Slow, ms(8_000), ms(5_000), "the receiver slow"),
        (Mood::Busy, ms(18_000), ms(3_000), "429 with Retry-After"),
        (Mood::Broken, ms(26_000), ms(2_000), "500"),
        (Mood::Moved, ms(33_000), ms(2_000), "redirected to another path of this machine"),
        (Mood::Down, ms(40_000), ms(30_000), "the receiver down"),
    ],
};
const SMALL: Plan = Plan {
    over: Duration::from_secs(13),
    bad: ms(300),
    kill: ms(950),
    moods: [
        (Mood::Slow, ms(2_000), ms(500), "the receiver slow"),
        (Mood::Busy, ms(5_000), ms(300), "429 with Retry-After"),
        (Mood::Broken, ms(8_500), ms(300), "500"),
        (Mood::Moved, ms(10_000), ms(300), "redirected to another path of this machine"),
        (Mood::Down, ms(11_500), ms(1_000), "the receiver down"),
    ],
};

pub(super) async fn run(profile: &Profile, dir: PathBuf) -> Outcome<bool> {
    let plan = if profile.is_small { &SMALL } else { &FULL };
    let port = free_port();
    let to = format!("http://127.0.0.1:{port}{PATH}");
    // What customers could give is refused before anything is sent.
    let refused = Target::parse(&to)?.forwarder().err().map(|error| error.kind());
    if refused != Some(ErrorKind::Invalid) {
        eprintln!("BROKEN a forwarder to this machine was not refused: {refused:?}");
        return Ok(false);
    }
    let mut scene = Scene::set(profile, dir).await?;
    let mood = watch::Sender::new(Mood::Well);
    let receiving = tokio::spawn(receive(port, mood.subscribe(), Arc::clone(&scene.arrivals)));
    let bad = Bad {
        headers: vec![("refuse", "yes".to_owned())],
        bytes: 200,
        words: "422 Unprocessable Entity: no such customer",
        count: 20,
    };
    scene.begin(&to, plan.over, &[], &[bad], plan.bad).await?;
    scene.until(plan.kill).await;
    scene.kill()?;
    for (changed, at, over, name) in plan.moods {
        scene.until(at).await;
        let begin = wall_us();
        mood.send_replace(changed);
        tokio::time::sleep(over).await;
        mood.send_replace(Mood::Well);
        // Its connections were cut when it went.
        let twice_max = if changed == Mood::Down { SLOTS as u64 } else { 0 };
        scene.ended(name, begin, twice_max).await?;
    }
    scene.rest().await?;
    receiving.abort();
    judge(&scene, "webhook", json!({})).await
}

/// A receiver that is always well.
pub(crate) struct Receiver {
    port: u16,
    arrivals: Arc<Arrivals>,
    receiving: JoinHandle<io::Result<()>>,
    /// It ends with this.
    _mood: watch::Sender<Mood>,
}

impl Receiver {
    /// Starts one on the runtime at hand.
    pub(crate) fn start() -> Self {
        let (port, mood, arrivals) =
            (free_port(), watch::Sender::new(Mood::Well), Arc::<Arrivals>::default());
        let receiving = tokio::spawn(receive(port, mood.subscribe(), Arc::clone(&arrivals)));
        Self { port, arrivals, receiving, _mood: mood }
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}{PATH}", self.port)
    }

    /// Whether this job arrived.
    pub(crate) fn has(&self, job: JobId) -> bool {
        self.arrivals.has(&job.to_string())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

/// Receives until it is told to end; listens as long as it is not down.
async fn receive(port: u16, mut mood: watch::Receiver<Mood>, arrivals: Arc<Arrivals>) -> io::Result<()> {
    while mood.wait_for(|mood| *mood != Mood::Down).await.is_ok() {
        let mut down = mood.clone();
        tokio::select! {
            ended = listen(port, &mood, &arrivals) => return ended,
            _ = down.wait_for(|mood| *mood == Mood::Down) => {}
        }
    }
    Ok(())
}

async fn listen(port: u16, mood: &watch::Receiver<Mood>, arrivals: &Arc<Arrivals>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (mood, mut down, arrivals) = (mood.clone(), mood.clone(), Arc::clone(arrivals));
        tokio::spawn(async move {
            tokio::select! {
                _ = answer(stream, &mood, &arrivals) => {}
                _ = down.wait_for(|mood| *mood == Mood::Down) => {}
            }
        });
    }
}

/// One connection.
async fn answer(stream: TcpStream, mood: &watch::Receiver<Mood>, arrivals: &Arrivals) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let Some(request) = Request::read(&mut stream).await? else { return Ok(()) };
        let now = *mood.borrow();
        let (status, more) = match now {
            _ if request.is_refused => {
                tokio::time::sleep(REFUSES).await;
                ("422 Unprocessable Entity", String::new())
            }
            Mood::Busy => ("429 Too Many Requests", format!("retry-after: {BUSY_S}\r\n")),
            Mood::Broken => ("500 Internal Server Error", String::new()),
            Mood::Moved if request.path == PATH => {
                ("307 Temporary Redirect", format!("location: {MOVED}\r\n"))
            }
            Mood::Slow => {
                tokio::time::sleep(THINKS).await;
                ("200 OK", String::new())
            }
            Mood::Well | Mood::Down | Mood::Moved => ("200 OK", String::new()),
        };
        if status.starts_with('2') {
            arrivals.note(&request.id, false);
        }
        let words = if request.is_refused { "no such customer" } else { "" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{more}\r\n{words}", words.len());
        stream.write_all(answer.as_bytes()).await?;
    }
}

#[derive(Default)]
struct Request {
    path: String,
    id: String,
    is_refused: bool,
}

impl Request {
    async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Self>> {
        let (mut request, mut length) = (Self::default(), 0);
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        line.split(' ').nth(1).unwrap_or_default().clone_into(&mut request.path);
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            match name {
                "webhook-id" => value.clone_into(&mut request.id),
                "punctual-header-refuse" => request.is_refused = true,
                "content-length" => length = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
        stream.read_exact(&mut vec![0; length]).await?;
        Ok(Some(request))
    }
}
