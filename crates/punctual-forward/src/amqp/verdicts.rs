//! Finds out which message was returned.
//!
//! The client keeps returned messages in a queue. Each confirm that it settles takes the first of them along, of
//! whichever message. If the broker confirms many messages with one frame, the client settles them in the order of a
//! hash table. Also, a task that waits for confirms can see one too early: before others that were settled before it.
//! These facts are reliable:
//!
//! * A return names its message, and is in the queue before that message is confirmed.
//! * When a *mark* comes out (see [`Verdicts::wants_mark`]), all confirms have been seen that were settled before
//!   those that were seen before the mark.
//!
//! So once the mark of a confirm has come out:
//!
//! * A confirm that took nothing found the queue empty. If its message was returned, that return has been seen.
//! * A confirm that took its own message is decided.
//! * A confirm that took the return of X is undecided: its own return may still be in the queue. If X's confirm took
//!   nothing, the queue was empty by then, which was later, and all returns have been seen. If it took the return of
//!   Y, then Y's confirm decides, and so on. Any confirm that was seen only after the mark and took nothing decides,
//!   too.
//!
//! One of these cases always occurs: since the queue was last empty, there is one confirm more than there are
//! returns.

use lapin::types::ShortString;

/// The broker's verdict on a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every queue to which it was routed has it.
    Taken,
    /// The broker cannot confirm that it has it.
    Refused,
    /// It was routed to no queue and returned.
    Returned(String),
}

/// A confirm, and its caller.
struct Confirmed<A> {
    id: ShortString,
    said: Verdict,
    /// The message whose return it took. Followed from one to the next.
    took: Option<ShortString>,
    /// How many marks had come out when it was seen; for an undecided one, when its own had.
    marks: u64,
    who: A,
}

/// The confirms of one channel, in the order in which they are seen.
pub(super) struct Verdicts<A> {
    /// Returned messages whose own confirms are undecided.
    returned: Vec<(ShortString, String)>,
    /// Confirms that wait for the next mark, and for the one in flight.
    seen: Vec<Confirmed<A>>,
    marked: Vec<Confirmed<A>>,
    /// Confirms that took the return of another message and are undecided.
    open: Vec<Confirmed<A>>,
    marks: u64,
    is_marking: bool,
    is_over: bool,
}

impl<A> Default for Verdicts<A> {
    fn default() -> Self {
        Self {
            returned: Vec::new(),
            seen: Vec::new(),
            marked: Vec::new(),
            open: Vec::new(),
            marks: 0,
            is_marking: false,
            is_over: false,
        }
    }
}

impl<A> Verdicts<A> {
    /// Notes a confirm: its message, what it says, and the return that it took (message and reason).
    pub(super) fn see(
        &mut self,
        id: ShortString,
        said: Verdict,
        took: Option<(ShortString, String)>,
        who: A,
        mut tell: impl FnMut(A, Verdict),
    ) {
        let marks = self.marks;
        let Some((back, why)) = took else {
            return self.seen.push(Confirmed { id, said, took: None, marks, who });
        };
        if back == id {
            return tell(who, Verdict::Returned(why));
        }
        // First, because it may be among those whose links are followed.
        self.seen.push(Confirmed { id, said, took: Some(back.clone()), marks, who });
        self.note(back, why, &mut tell);
    }

    /// Returns whether a mark must be sent after everything that is ready now. At most one is in flight.
    pub(super) fn wants_mark(&mut self) -> bool {
        if self.is_marking || self.seen.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.seen, &mut self.marked);
        self.is_marking = true;
        true
    }

    /// Notes that the mark came out.
    pub(super) fn mark(&mut self, mut tell: impl FnMut(A, Verdict)) {
        self.marks += 1;
        self.is_marking = false;
        // From the end, so that each is out of the way when links are followed.
        while let Some(mut one) = self.marked.pop() {
            if let Some(at) = self.returned.iter().position(|(back, _)| *back == one.id) {
                let why = self.returned.swap_remove(at).1;
                self.follow(&one.id, one.took.as_ref(), &mut tell);
                tell(one.who, Verdict::Returned(why));
            } else if one.took.is_none() {
                let told = self.open.extract_if(.., |open| open.marks <= one.marks);
                told.for_each(|open| tell(open.who, open.said));
                tell(one.who, one.said);
            } else if !self.is_over {
                one.marks = self.marks;
                self.open.push(one);
            }
        }
    }

    /// Ends with the channel: drops the confirms that cannot be decided any more.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.open.clear();
    }

    /// Returns how many returns are here whose confirms did not arrive.
    pub(super) fn left_over(&self) -> usize {
        self.returned.len()
    }

    fn note(&mut self, back: ShortString, why: String, tell: &mut impl FnMut(A, Verdict)) {
        let Some(at) = self.open.iter().position(|open| open.id == back) else {
            return self.returned.push((back, why));
        };
        let open = self.open.swap_remove(at);
        self.follow(&back, open.took.as_ref(), tell);
        tell(open.who, Verdict::Returned(why));
    }

    /// Links the confirm that took the return of this message to the one whose return this confirm took.
    fn follow(&mut self, id: &ShortString, took: Option<&ShortString>, tell: &mut impl FnMut(A, Verdict)) {
        let waiting = self.seen.iter_mut().chain(&mut self.marked).chain(&mut self.open);
        waiting.filter(|one| one.took.as_ref() == Some(id)).for_each(|one| one.took = took.cloned());
        let told = self.open.extract_if(.., |open| open.took.is_none());
        told.for_each(|open| tell(open.who, open.said));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn name(n: usize) -> ShortString {
        ShortString::try_new(n.to_string()).unwrap()
    }

    /// A message between the broker and the caller that waits for its confirm.
    #[derive(Clone, Default)]
    struct Message {
        is_ready: bool,
        is_listened_to: bool,
        is_confirmed: bool,
        /// The return that its confirm took.
        took: Option<usize>,
    }

    /// Simulates a broker and a client. The broker returns unroutable messages and confirms in any order. The client
    /// gives returns to any confirm. Futures are polled when they are woken: once their frames are written, and again
    /// once they are confirmed.
    fn run(seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let n = random.usize(1..40);
        let odds = [0.0, 0.1, 0.5, 0.9, 1.0][random.usize(..5)];
        let haste = random.f64();
        let unroutable: Vec<bool> = (0..n).map(|_| random.f64() < odds).collect();
        let (mut messages, mut line) = (vec![Message::default(); n], VecDeque::new());
        let (mut verdicts, mut told) = (Verdicts::default(), vec![None; n]);
        let (mut ready, mut sent) = (VecDeque::<Option<usize>>::new(), 0);
        let tell = |told: &mut Vec<Option<Verdict>>, who: usize, verdict| {
            assert!(told[who].replace(verdict).is_none(), "seed {seed}: {who} is told twice");
        };
        loop {
            let unconfirmed: Vec<usize> = (0..sent).filter(|&at| !messages[at].is_confirmed).collect();
            if sent == n && unconfirmed.is_empty() && ready.is_empty() {
                break;
            }
            if random.f64() < haste && !ready.is_empty() {
                // The first future that was woken; `None` is a mark.
                match ready.pop_front().unwrap() {
                    None => verdicts.mark(|who, verdict| tell(&mut told, who, verdict)),
                    Some(at) => {
                        messages[at].is_ready = false;
                        if messages[at].is_confirmed {
                            let took = messages[at].took.map(|back| (name(back), back.to_string()));
                            verdicts.see(name(at), Verdict::Taken, took, at, |who, verdict| {
                                tell(&mut told, who, verdict);
                            });
                        } else {
                            messages[at].is_listened_to = true;
                        }
                    }
                }
                if verdicts.wants_mark() {
                    ready.push_back(None);
                }
            } else if sent < n && (unconfirmed.is_empty() || random.bool()) {
                // Its frames are written, and the broker routes it.
                messages[sent].is_ready = true;
                ready.push_back(Some(sent));
                if unroutable[sent] {
                    line.push_back(sent);
                }
                sent += 1;
            } else if !unconfirmed.is_empty() {
                let at = unconfirmed[random.usize(..unconfirmed.len())];
                (messages[at].is_confirmed, messages[at].took) = (true, line.pop_front());
                if messages[at].is_listened_to && !messages[at].is_ready {
                    messages[at].is_ready = true;
                    ready.push_back(Some(at));
                }
            }
        }
        for (at, verdict) in told.into_iter().enumerate() {
            let right = if unroutable[at] { Verdict::Returned(at.to_string()) } else { Verdict::Taken };
            assert_eq!(verdict, Some(right), "seed {seed}: {at} of {n}");
        }
        assert_eq!((verdicts.left_over(), verdicts.open.len()), (0, 0), "seed {seed}");
    }

    #[test]
    fn each_message_gets_its_own_verdict_in_whatever_order_confirms_are_seen() {
        (0..20_000).for_each(run);
    }

    #[test]
    fn who_took_the_return_of_another_waits_for_what_that_one_took() {
        let (mut verdicts, mut told) = (Verdicts::default(), Vec::new());
        let back = |n| Some((name(n), "312 NO_ROUTE".to_owned()));
        let returned = || Verdict::Returned("312 NO_ROUTE".to_owned());
        verdicts.see(name(1), Verdict::Refused, back(2), 1, |who, said| told.push((who, said)));
        assert!(verdicts.wants_mark() && !verdicts.wants_mark(), "one at a time");
        verdicts.mark(|who, said| told.push((who, said)));
        assert!(told.is_empty());
        verdicts.see(name(2), Verdict::Taken, None, 2, |who, said| told.push((who, said)));
        assert!(told.is_empty() && verdicts.wants_mark());
        verdicts.mark(|who, said| told.push((who, said)));
        assert_eq!(told, [(1, Verdict::Refused), (2, returned())]);
    }
}
