//! A command and the processes that it starts, from its start until the last of them is gone.
//!
//! ```text
//! running ──the command exits──► exited ──its group ends──► gone
//!    └──end: a signal, then SIGKILL after a while──────────► gone
//! ```
//!
//! On Linux this process adopts the processes that the command leaves (as a subreaper). It waits for each, so that no zombie keeps
//! the group alive, and it finds those that left the group. On other systems a family is the process group. A process must have at
//! most one family and no other children, because the family waits for all of them.

use std::{
    io,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Command, ExitStatus},
    time::Duration,
};

use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpgrp, kill_process, kill_process_group, test_kill_process_group,
    wait,
};
use tokio::{
    signal::unix::{self, SignalKind},
    time::timeout,
};

/// The interval at which this process checks whether a group has ended, since no signal reports that.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Which processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// Those of the command's process group.
    Group,
    /// Those that left the group as well, as far as the system knows them.
    All,
}

/// A command that was started. Dropped, all that is left of it is killed.
pub(crate) struct Family {
    leader: Pid,
    /// The command's own process group; `None`: it shares ours, to have the terminal.
    group: Option<Pid>,
    /// How the command ended.
    status: Option<ExitStatus>,
    /// Rung when a child ends.
    ended: unix::Signal,
    is_gone: bool,
}

impl Family {
    /// Starts a command, in a process group of its own or in that of this process.
    pub(crate) fn start(command: &mut Command, has_own_group: bool) -> io::Result<Self> {
        // Without it (an old kernel, another system) the group is all that is known.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let ended = unix::signal(SignalKind::child())?;
        if has_own_group {
            command.process_group(0);
        }
        let child = command.spawn()?;
        let leader = Pid::from_child(&child);
        let group = has_own_group.then_some(leader);
        Ok(Self { leader, group, status: None, ended, is_gone: false })
    }

    /// The number of the command, which is that of its process group.
    pub(crate) const fn leader(&self) -> Pid {
        self.leader
    }

    /// Waits until the command itself has ended. May be dropped and called again.
    pub(crate) async fn exited(&mut self) -> ExitStatus {
        loop {
            self.wait_for_children();
            if let Some(status) = self.status {
                return status;
            }
            self.ended.recv().await;
        }
    }

    /// Passes a signal on.
    pub(crate) fn signal(&self, signal: Signal) {
        match self.group {
            // A group that is gone needs none. Its number means no other one as long as a process is in it.
            Some(group) => _ = kill_process_group(group, signal),
            None if self.status.is_none() => send(self.leader, signal),
            None => {}
        }
    }

    /// Ends what is left: with SIGTERM, and after `grace` with SIGKILL, again and again until it is gone. A process that the
    /// kernel can't end (one that waits for a lost disk) is waited for without end. Dropped, all is killed at once.
    pub(crate) async fn end(&mut self, members: Members, grace: Duration) {
        if !grace.is_zero() && self.is_there(members) {
            self.signal(Signal::TERM);
            self.strays(members).for_each(|stray| send(stray, Signal::TERM));
            let _ = timeout(grace, self.gone(members)).await;
        }
        while self.is_there(members) {
            self.kill(members);
            let _ = timeout(LOOK_EVERY, self.ended.recv()).await;
        }
        self.is_gone = true;
    }

    /// Leaves the remaining processes of the command running.
    pub(crate) fn let_go(mut self) {
        self.is_gone = true;
    }

    async fn gone(&mut self, members: Members) {
        while self.is_there(members) {
            let _ = timeout(LOOK_EVERY, self.ended.recv()).await;
        }
    }

    /// Whether one of them still runs.
    fn is_there(&mut self, members: Members) -> bool {
        let has_children = self.wait_for_children();
        let has_group = || match self.group {
            Some(group) => test_kill_process_group(group).is_ok(),
            None => self.strays(Members::Group).next().is_some(),
        };
        let counts = members == Members::All && cfg!(target_os = "linux");
        counts && has_children || self.status.is_none() || has_group()
    }

    fn kill(&self, members: Members) {
        self.signal(Signal::KILL);
        self.strays(members).for_each(|stray| send(stray, Signal::KILL));
    }

    /// Children of this process that no signal to the command's own group reaches. They are waited for by this process alone, so
    /// that their numbers cannot belong to other processes. A process with a living parent is found after that parent has ended.
    fn strays(&self, members: Members) -> impl Iterator<Item = Pid> + use<> {
        let (leader, group) = (self.leader, self.group);
        let is_one = move |child: &Pid| match (group, members) {
            (Some(_), Members::Group) => false,
            (Some(group), Members::All) => getpgid(Some(*child)).is_ok_and(|its| its != group),
            (None, Members::Group) => {
                *child != leader && getpgid(Some(*child)).is_ok_and(|its| its == getpgrp())
            }
            (None, Members::All) => *child != leader,
        };
        children().into_iter().filter(is_one)
    }

    /// Waits for those that ended; answers whether there are others.
    fn wait_for_children(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((child, status)))
                    if child == self.leader && (status.exited() || status.signaled()) =>
                {
                    self.status = Some(ExitStatus::from_raw(status.as_raw()));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if !self.is_gone {
            self.kill(Members::All);
        }
    }
}

/// Sends a signal to a child, which was not waited for yet.
fn send(child: Pid, signal: Signal) {
    let _ = kill_process(child, signal);
}

/// The children of this process, adopted ones included; none where the system doesn't list them.
fn children() -> Vec<Pid> {
    let mut found = Vec::new();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return found };
    for thread in threads.flatten() {
        let list = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    found
}
