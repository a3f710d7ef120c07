//! A call in flight, and the callers that wait for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
};

use super::{Answer, Answers, lock};
use crate::store::BoxFuture;

/// A caller that waits for an answer.
#[derive(Default)]
pub(super) struct Caller(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    answer: Option<Answer>,
    waker: Option<Waker>,
}

impl Caller {
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Answer> {
        let mut waiting = lock(&self.0);
        if let Some(answer) = waiting.answer.take() {
            return Poll::Ready(answer);
        }
        waiting.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn tell(&self, answer: Answer) {
        lock(&self.0).answer = Some(answer);
        self.wake();
    }

    pub(super) fn wake(&self) {
        let waker = lock(&self.0).waker.take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// A call in flight, driven by any caller that polls it.
pub(super) struct Flight(Mutex<Course>);

enum Course {
    OnItsWay(BoxFuture<'static, Answers>),
    /// `None` if a caller has taken the answer.
    Landed(Option<Answers>),
}

impl Flight {
    pub(super) fn new(call: BoxFuture<'static, Answers>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Course::OnItsWay(call))))
    }

    /// Polls the call on behalf of all callers. Ready once the answer is there or was taken.
    pub(super) fn poll(&self, crowd: &Arc<Crowd>) -> Poll<()> {
        let mut course = lock(&self.0);
        if let Course::OnItsWay(call) = &mut *course {
            let waker = Waker::from(Arc::clone(crowd));
            match call.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => *course = Course::Landed(Some(answer)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// Takes the answer, if it is there.
    pub(super) fn take(&self) -> Option<Answers> {
        match &mut *lock(&self.0) {
            Course::OnItsWay(_) => None,
            Course::Landed(answer) => answer.take(),
        }
    }
}

/// All waiting callers, in the order in which they came. All are woken when a call moves on, because it is unknown which of
/// them are polled.
#[derive(Default)]
pub(super) struct Crowd(Mutex<Members>);

#[derive(Default)]
struct Members {
    callers: BTreeMap<u64, Arc<Caller>>,
    next: u64,
}

impl Crowd {
    /// Adds a caller; returns its number.
    pub(super) fn join(&self, caller: &Arc<Caller>) -> u64 {
        let mut members = lock(&self.0);
        let number = members.next;
        members.next += 1;
        members.callers.insert(number, Arc::clone(caller));
        number
    }

    pub(super) fn leave(&self, number: u64) {
        lock(&self.0).callers.remove(&number);
    }
}

impl Wake for Crowd {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Without the lock, because a woken caller may be about to leave.
        let callers: Vec<Arc<Caller>> = lock(&self.0).callers.values().cloned().collect();
        for caller in callers {
            caller.wake();
        }
    }
}
