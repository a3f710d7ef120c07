//! A stream that ends if its client takes nothing of what is sent.
//!
//! A client that never reads would hold its connection and the whole answer. The system takes some bytes for it, and then
//! none until the client has read. A client that reads slowly makes progress, and is not ended.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::seats::Seat;

/// A stream whose writes have a time limit.
#[derive(Debug)]
pub(super) struct Taken<S> {
    stream: S,
    at_most: Duration,
    /// Runs while a write waits for the client.
    waits: Option<Pin<Box<Sleep>>>,
    seat: Arc<Seat>,
}

impl<S> Taken<S> {
    /// Makes a stream whose client has `at_most` to take a next byte. `seat` records when it took some.
    pub(super) fn new(stream: S, at_most: Duration, seat: Arc<Seat>) -> Self {
        Self { stream, at_most, waits: None, seat }
    }

    /// Passes the result of a write on, unless the client took nothing for too long.
    fn within<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = None;
            self.seat.took();
            return written;
        }
        let at_most = self.at_most;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(at_most)));
        match waits.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Taken<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Taken<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.within(context, written)
    }

    /// Without it, whole answers would be copied before they are written.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::accept::seats::Seats;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_ended_and_a_slow_one_is_not() {
        let (seats, at_most) = (Seats::default(), Duration::from_secs(45));
        let (mut client, server) = duplex(16);
        let mut server = Taken::new(server, at_most, seats.take("127.0.0.1".parse().unwrap()));
        // It takes some bytes each half minute, for an hour.
        let reads = async {
            for _ in 0..120 {
                sleep(Duration::from_secs(30)).await;
                client.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(server.write_all(&[7; 121 * 16]), reads);
        written.unwrap();
        let ended = server.write_all(&[7; 32]).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }
}
