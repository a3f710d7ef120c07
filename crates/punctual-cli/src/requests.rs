//! Signals that ask this process to stop: SIGTERM, SIGHUP and SIGINT; on other systems Ctrl-C.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code of a process that signal n ended is this plus n, as shells say it.
pub(crate) const EXIT_SIGNAL: i32 = 128;

/// Asked to end.
#[cfg(unix)]
pub(crate) struct Requests {
    terminate: Signal,
    hang_up: Signal,
    interrupt: Signal,
}

#[cfg(unix)]
impl Requests {
    /// Starts to handle the signals, whose default action would end this process.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The number of the next signal. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> i32 {
        let kind = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hang_up.recv() => SignalKind::hangup(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        };
        kind.as_raw_value()
    }
}

/// Asked to end.
#[cfg(not(unix))]
pub(crate) struct Requests;

#[cfg(not(unix))]
impl Requests {
    /// Does nothing on this system.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    /// The number of the next signal. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> i32 {
        const INTERRUPT: i32 = 2;
        let _ = tokio::signal::ctrl_c().await;
        INTERRUPT
    }
}

/// Returns the exit code of a process that this signal ended.
pub(crate) fn exit_code(signal: i32) -> u8 {
    u8::try_from(EXIT_SIGNAL + signal).unwrap_or(u8::MAX)
}
