//! A network that loses confirms: connections to a port of this machine lead to a broker, and of the frames that the broker
//! sends some that confirm are left out. Nothing else is touched: whoever publishes never hears of those.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
};

/// Bytes moved at once.
const CHUNK: usize = 64 * 1024;
/// Of a frame, before and after what it carries: type, channel and length; and a byte that ends it.
const HEAD: usize = 7;
const TAIL: usize = 1;
/// A frame with a method in it.
const METHOD: u8 = 1;
/// Class and method of `basic.ack` and `basic.nack`.
const CONFIRMS: [[u8; 4]; 2] = [[0, 60, 0, 80], [0, 60, 0, 120]];
/// The same of `channel.close` and `channel.close-ok`.
const ENDS: [[u8; 4]; 2] = [[0, 20, 0, 40], [0, 20, 0, 41]];
/// Of a frame with a confirm: where the number of the message is, and where it says whether all before are meant, too.
const TAG: usize = HEAD + 4;
const FLAGS: usize = TAG + 8;
const MULTIPLE: u8 = 1;

/// A port that leads to a broker.
#[derive(Debug)]
pub(super) struct Proxy {
    port: u16,
    loss: Arc<Loss>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Loss {
    /// In so many of 100 confirms.
    percent: AtomicU64,
    messages: AtomicU64,
}

impl Proxy {
    pub(super) async fn to(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let loss = Arc::new(Loss::default());
        let own = listener.local_addr()?.port();
        let accepting = tokio::spawn(accept(listener, port, Arc::clone(&loss)));
        Ok(Self { port: own, loss, accepting })
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// From now on so many of 100 confirms are lost.
    pub(super) fn lose(&self, percent: u64) {
        self.loss.percent.store(percent, SeqCst);
    }

    /// How many messages' confirms were lost.
    pub(super) fn lost(&self) -> u64 {
        self.loss.messages.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, port: u16, loss: Arc<Loss>) {
    while let Ok((client, _)) = listener.accept().await {
        let loss = Arc::clone(&loss);
        tokio::spawn(async move {
            let Ok(broker) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
            let _ = (client.set_nodelay(true), broker.set_nodelay(true));
            let (mut from_client, to_client) = client.into_split();
            let (from_broker, mut to_broker) = broker.into_split();
            // Ends with either end, and both are closed then.
            tokio::select! {
                _ = tokio::io::copy(&mut from_client, &mut to_broker) => {}
                _ = answers(from_broker, to_client, &loss) => {}
            }
        });
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, loss: &Loss) -> io::Result<()> {
    let (mut held, mut kept) = (Vec::with_capacity(CHUNK), Vec::with_capacity(CHUNK));
    let mut channels = BTreeMap::<[u8; 2], Confirmed>::new();
    loop {
        if from.read_buf(&mut held).await? == 0 {
            return Ok(());
        }
        let mut begin = 0;
        while let Some(frame) = frame(&held[begin..]) {
            begin += frame.len();
            let carried = &frame[HEAD..];
            if frame[0] == METHOD && CONFIRMS.iter().any(|which| carried.starts_with(which)) {
                channels.entry([frame[1], frame[2]]).or_default().pass(frame, loss, &mut kept);
            } else {
                // A channel that ends takes its numbers with it; the next one of its number counts from 1.
                if frame[0] == METHOD && ENDS.iter().any(|which| carried.starts_with(which)) {
                    channels.remove(&[frame[1], frame[2]]);
                }
                kept.extend_from_slice(frame);
            }
        }
        held.drain(..begin);
        to.write_all(&kept).await?;
        kept.clear();
    }
}

/// The first frame of what came, if all of it is there.
fn frame(bytes: &[u8]) -> Option<&[u8]> {
    let length = bytes.get(3..HEAD)?.try_into().expect("invariant: they are four");
    bytes.get(..HEAD + u32::from_be_bytes(length) as usize + TAIL)
}

/// What was confirmed on a channel.
#[derive(Default)]
struct Confirmed {
    /// All up to this one.
    all: u64,
    /// Beyond it.
    ahead: BTreeSet<u64>,
    /// Whether a confirm of it was lost: from then on each message's comes in a frame of its own, since one for many would
    /// make good for those that were lost.
    has_lost: bool,
}

impl Confirmed {
    /// Lets a confirm pass, or what is left of it.
    fn pass(&mut self, frame: &[u8], loss: &Loss, kept: &mut Vec<u8>) {
        let tag = frame[TAG..].first_chunk().map_or(0, |tag| u64::from_be_bytes(*tag));
        let new: Vec<u64> = if frame[FLAGS] & MULTIPLE == 0 {
            self.ahead.insert(tag);
            vec![tag]
        } else {
            let new = (self.all + 1..=tag).filter(|tag| !self.ahead.contains(tag)).collect();
            self.ahead.extend(self.all + 1..=tag);
            new
        };
        while self.ahead.remove(&(self.all + 1)) {
            self.all += 1;
        }
        let percent = loss.percent.load(Relaxed);
        if percent == 0 && !self.has_lost {
            kept.extend_from_slice(frame);
            return;
        }
        self.has_lost = true;
        for tag in new {
            if fastrand::u64(..100) < percent {
                loss.messages.fetch_add(1, SeqCst);
                continue;
            }
            let begin = kept.len();
            kept.extend_from_slice(frame);
            kept[begin + TAG..begin + FLAGS].copy_from_slice(&tag.to_be_bytes());
            kept[begin + FLAGS] &= !MULTIPLE;
        }
    }
}
