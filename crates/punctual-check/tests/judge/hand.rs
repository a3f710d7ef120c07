//! Histories by hand: short enough to say of each what the judge must make of it.

use punctual::{JobId, State};
use punctual_check::{
    History, Options, Verdict,
    event::{
        Accepted, Answer, CallId, Deed, Due, Dumped, Effect, Ended, Hex, LeaseId, Line, Op, Reservation,
        Reservations, Said, Wanted, What,
    },
    judge,
};

pub(crate) const SECOND: u64 = 1_000_000_000;
/// How long leases last.
pub(crate) const LEASE_MS: u64 = 15_000;

pub(crate) fn id(n: u64) -> JobId {
    JobId::derived("q", None, &n.to_string())
}

fn sum(n: u64) -> Hex {
    Hex::fingerprint(&n.to_be_bytes())
}

/// One process' lines. Instants are seconds; a call takes a microsecond.
pub(crate) struct File(pub(crate) Vec<Line>);

impl File {
    /// A process with so many slots, from the beginning on.
    pub(crate) fn new(proc: &str, slots: u64) -> Self {
        Self::at(proc, slots, 0.0)
    }

    /// The same, from this instant on.
    pub(crate) fn at(proc: &str, slots: u64, s: f64) -> Self {
        Self::that_publishes(proc, slots, 0, s)
    }

    /// The same, with so many slots for publications beside them.
    pub(crate) fn that_publishes(proc: &str, slots: u64, publications: u64, s: f64) -> Self {
        let mut file = Self(Vec::new());
        file.note(s, What::Open { proc: proc.to_owned(), pid: 1, slots, publications });
        file
    }

    fn line(&mut self, m: u64, n: u64, what: What) {
        self.0.push(Line { m, w: m / 1_000_000, n, what });
    }

    pub(crate) fn note(&mut self, s: f64, what: What) {
        self.line(m(s), 0, what);
    }

    pub(crate) fn call(&mut self, s: f64, op: Op, answer: Answer) {
        self.call_that_takes(s, 1e-6, op, What::Ok(answer));
    }

    pub(crate) fn call_that_takes(&mut self, s: f64, takes: f64, op: Op, answer: What) {
        let n = self.0.len() as u64 + 1;
        self.line(m(s), n, What::Invoke(op));
        self.line(m(s + takes), n, answer);
    }

    /// Its answer is lost.
    pub(crate) fn lost(&mut self, s: f64, op: Op) {
        self.call_that_takes(s, 1e-6, op, What::Info("lost".to_owned()));
    }

    /// Job `n`, due so many seconds after the beginning.
    pub(crate) fn enqueue_due(&mut self, s: f64, n: u64, due: f64) {
        self.enqueue_as(s, n, due, |_| ());
    }

    /// The same, with something else about it.
    pub(crate) fn enqueue_as(&mut self, s: f64, n: u64, due: f64, with: impl FnOnce(&mut Wanted)) {
        let run_at = m(due) / 1_000_000;
        let mut job = Wanted { due: Due::At(run_at), ..Self::wanted(n) };
        with(&mut job);
        // Its id is that of the answer.
        let answer = Accepted::Inserted { run_at, id: (job.id != id(n)).then(|| id(n)) };
        let op = Op::Enqueue { call: CallId(Hex(1), n), jobs: vec![job] };
        self.call(s, op, Answer::Enqueue(vec![answer]));
    }

    /// Job `n`, due at once.
    pub(crate) fn wanted(n: u64) -> Wanted {
        Wanted {
            id: id(n),
            queue: "q".to_owned(),
            sum: sum(n),
            due: Due::Now,
            unique: None,
            group: None,
            concurrency: None,
            expires: None,
            expect: None,
            is_tick: false,
        }
    }

    pub(crate) fn enqueue(&mut self, s: f64, n: u64) {
        self.enqueue_due(s, n, s);
    }

    /// The reservation of job `n`, enqueued after a second, under this fence.
    pub(crate) fn row(s: f64, n: u64, fence: u64) -> Reservation {
        Reservation {
            id: id(n),
            fence,
            attempt: 1,
            expired_leases: 0,
            company: false,
            max_attempts: 20,
            run_at: 1_000,
            created_at: 1_000,
            until: m(s) / 1_000_000 + LEASE_MS,
            lasts: LEASE_MS,
            sum: sum(n),
        }
    }

    /// The op and the answer of a reserve.
    pub(crate) fn batch(
        s: f64,
        jobs: Vec<Reservation>,
        reclaimed: Vec<(LeaseId, State)>,
    ) -> (Op, Reservations) {
        let call = CallId(Hex(8), m(s));
        (Op::Reserve { call }, Reservations { now: m(s) / 1_000_000, jobs, reclaimed })
    }

    /// Job `n` begins.
    pub(crate) fn begin(&mut self, s: f64, n: u64, fence: u64) {
        self.begin_as(s, Self::row(s, n, fence), vec![]);
    }

    pub(crate) fn begin_as(&mut self, s: f64, row: Reservation, reclaimed: Vec<(LeaseId, State)>) {
        let (op, batch) = Self::batch(s, vec![row], reclaimed);
        self.call(s, op, Answer::Reserve(batch));
        self.note(s + 2e-6, What::Start { id: row.id, fence: row.fence, sum: row.sum });
    }

    /// Its run ends so, and leads there.
    pub(crate) fn end_as(&mut self, s: f64, n: u64, fence: u64, said: Said, state: State) {
        let runs = vec![Ended { id: id(n), fence, verdict: said }];
        let answer = Answer::Settle { states: vec![Some(state)], away: vec![], then: None };
        self.call(s, Op::Settle { runs, then: None }, answer);
    }

    pub(crate) fn end(&mut self, s: f64, n: u64, fence: u64) {
        self.end_as(s, n, fence, Said::Ack, State::Done);
    }

    /// A lease of job `n` is reclaimed, by a reserve that finds nothing else.
    pub(crate) fn reclaim(&mut self, s: f64, n: u64, fence: u64, state: State) {
        let (op, batch) = Self::batch(s, vec![], vec![(LeaseId(id(n), fence), state)]);
        self.call(s, op, Answer::Reserve(batch));
    }

    /// An operator does this to job `n`.
    pub(crate) fn act(&mut self, s: f64, n: u64, deed: Deed) {
        self.call(s, Op::Act { deed, targets: vec![Some(id(n))] }, Answer::Act(vec![Effect::Done(id(n))]));
    }

    /// The same; the run that goes on decides.
    pub(crate) fn ask(&mut self, s: f64, n: u64, deed: Deed) {
        let answer = Answer::Act(vec![Effect::Requested(id(n))]);
        self.call(s, Op::Act { deed, targets: vec![Some(id(n))] }, answer);
    }

    pub(crate) fn dump(&mut self, s: f64, jobs: &[(u64, State)]) {
        let job =
            |&(n, state)| Dumped { id: id(n), state, reason: None, attempt: 1, expired_leases: 0, run_at: 0 };
        let jobs = jobs.iter().map(job).collect();
        self.note(s, What::Dump { now: m(s) / 1_000_000, jobs, last: true });
    }

    /// It was killed at this instant, as another one notes.
    pub(crate) fn kill(&mut self, s: f64, proc: &str) {
        self.note(s, What::Killed { proc: proc.to_owned() });
    }
}

fn m(s: f64) -> u64 {
    (s * SECOND as f64).round() as u64
}

pub(crate) fn verdict_with(files: &[&File], options: Options) -> Verdict {
    judge(&History::of(files.iter().map(|file| file.0.as_slice())), options)
}

pub(crate) fn verdict(files: &[&File]) -> Verdict {
    verdict_with(files, Options::default())
}
