//! Tells whose message came back.
//!
//! The client hands a returned message to the next confirm that it sees, whosever that is: it keeps them in a line, and each
//! confirm takes the first, if there is one. Where the broker confirms many with one frame, these come in the order of a
//! hash table. But each return names its message, and comes before the confirm of it. So:
//!
//! * A confirm that takes nothing came when the line was empty: all that came back before it is known by now, and whoever is
//!   not among it was routed.
//! * A confirm that takes its own message says it all.
//! * A confirm that takes another's says nothing of its own yet: its message may stand behind in the line. It is known when
//!   a later confirm takes it, or takes nothing. That comes always: of those behind whom the line was last empty there is one
//!   more than it has returns.

use lapin::types::ShortString;

/// What the broker says of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every queue that it was routed to has it.
    Taken,
    /// It can't say that it has it.
    Refused,
    /// It was routed to no queue.
    Returned(String),
}

/// Confirms of one channel, in the order in which they come; `A` is who waits for one.
pub(super) struct Verdicts<A> {
    /// Came back, and their own confirms are still to come.
    returned: Vec<(ShortString, String)>,
    /// Confirmed with another's return.
    open: Vec<(ShortString, Verdict, A)>,
}

impl<A> Default for Verdicts<A> {
    fn default() -> Self {
        Self { returned: Vec::new(), open: Vec::new() }
    }
}

impl<A> Verdicts<A> {
    /// Takes the next confirm: of which message, what it says, and the return that it carries, by its message and in words. Tells
    /// all whose verdicts are known by now.
    pub(super) fn take(
        &mut self,
        id: ShortString,
        said: Verdict,
        carried: Option<(ShortString, String)>,
        who: A,
        mut tell: impl FnMut(A, Verdict),
    ) {
        let is_line_empty = carried.is_none();
        if let Some((back, why)) = carried {
            if back == id {
                return tell(who, Verdict::Returned(why));
            }
            match self.open.iter().position(|(open, ..)| *open == back) {
                Some(at) => tell(self.open.swap_remove(at).2, Verdict::Returned(why)),
                None => self.returned.push((back, why)),
            }
        }
        match self.returned.iter().position(|(back, _)| *back == id) {
            Some(at) => tell(who, Verdict::Returned(self.returned.swap_remove(at).1)),
            None if is_line_empty => tell(who, said),
            None => self.open.push((id, said, who)),
        }
        if is_line_empty {
            self.open.drain(..).for_each(|(_, said, who)| tell(who, said));
        }
    }

    /// The channel is gone: drops those whose verdicts will not be known.
    pub(super) fn give_up(&mut self) {
        self.open.clear();
        self.returned.clear();
    }

    /// How many returns stand here whose confirms did not come.
    pub(super) fn left_over(&self) -> usize {
        self.returned.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn name(n: usize) -> ShortString {
        ShortString::try_new(n.to_string()).unwrap()
    }

    /// A broker that returns what it can't route, confirms in any order, and a client as the one that is used.
    fn run(seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let messages = random.usize(1..60);
        let odds = [0.0, 0.1, 0.5, 0.9, 1.0][random.usize(..5)];
        let unroutable: Vec<bool> = (0..messages).map(|_| random.f64() < odds).collect();
        let (mut verdicts, mut told) = (Verdicts::default(), vec![None; messages]);
        let (mut line, mut to_confirm, mut sent) = (VecDeque::new(), Vec::new(), 0);
        while sent < messages || !to_confirm.is_empty() {
            if sent < messages && (to_confirm.is_empty() || random.bool()) {
                if unroutable[sent] {
                    line.push_back(sent);
                }
                to_confirm.push(sent);
                sent += 1;
                continue;
            }
            random.shuffle(&mut to_confirm);
            let id = to_confirm.pop().unwrap();
            let carried = line.pop_front().map(|back| (name(back), back.to_string()));
            verdicts.take(name(id), Verdict::Taken, carried, id, |who: usize, verdict| {
                assert!(told[who].replace(verdict).is_none(), "seed {seed}: {who} is told twice");
            });
        }
        for (n, verdict) in told.into_iter().enumerate() {
            let right = if unroutable[n] { Verdict::Returned(n.to_string()) } else { Verdict::Taken };
            assert_eq!(verdict, Some(right), "seed {seed}: {n} of {messages}");
        }
        assert_eq!((verdicts.left_over(), verdicts.open.len()), (0, 0), "seed {seed}");
    }

    #[test]
    fn each_message_gets_its_own_verdict_in_whatever_order_confirms_come() {
        (0..20_000).for_each(run);
    }

    #[test]
    fn who_carries_the_return_of_another_waits() {
        let (mut verdicts, mut told) = (Verdicts::default(), Vec::new());
        let back = |n| Some((name(n), "312 NO_ROUTE".to_owned()));
        let returned = || Verdict::Returned("312 NO_ROUTE".to_owned());
        // 2 stands behind 1 in the line, and is confirmed first.
        verdicts.take(name(2), Verdict::Taken, back(1), 2, |who, said| told.push((who, said)));
        assert!(told.is_empty());
        verdicts.take(name(1), Verdict::Taken, back(2), 1, |who, said| told.push((who, said)));
        assert_eq!(told, [(2, returned()), (1, returned())]);
        told.clear();
        // 3 was routed, and carries what came back of 4.
        verdicts.take(name(3), Verdict::Refused, back(4), 3, |who, said| told.push((who, said)));
        assert!(told.is_empty());
        verdicts.take(name(4), Verdict::Taken, None, 4, |who, said| told.push((who, said)));
        assert_eq!(told, [(4, returned()), (3, Verdict::Refused)]);
    }
}
