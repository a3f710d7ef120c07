//! A call on its way, and those who wait for it.

use std::{
    collections::HashMap,
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

/// A call on its way, driven by whoever polls it.
pub(super) struct Flight(Mutex<Course>);

enum Course {
    OnItsWay(BoxFuture<'static, Answers>),
    /// `None`: somebody has taken it.
    Landed(Option<Answers>),
}

impl Flight {
    pub(super) fn new(call: BoxFuture<'static, Answers>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Course::OnItsWay(call))))
    }

    /// Polls the call for everybody; ready once its answer is there, or was taken.
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

    /// The answer, if it is there.
    pub(super) fn take(&self) -> Option<Answers> {
        match &mut *lock(&self.0) {
            Course::OnItsWay(_) => None,
            Course::Landed(answer) => answer.take(),
        }
    }
}

/// All callers that wait, woken when a call moves on: nobody knows which of them are driven.
#[derive(Default)]
pub(super) struct Crowd(Mutex<HashMap<usize, Arc<Caller>>>);

impl Crowd {
    pub(super) fn join(&self, caller: &Arc<Caller>) {
        lock(&self.0).insert(Arc::as_ptr(caller).addr(), Arc::clone(caller));
    }

    pub(super) fn leave(&self, caller: &Arc<Caller>) {
        lock(&self.0).remove(&Arc::as_ptr(caller).addr());
    }
}

impl Wake for Crowd {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Not under the lock: who is woken may be on its way out.
        let callers: Vec<Arc<Caller>> = lock(&self.0).values().cloned().collect();
        for caller in callers {
            caller.wake();
        }
    }
}
