//! What a kill of the server may undo, and what it may not: histories by hand, the same ones a little earlier and a little
//! later.

use std::time::Duration;

use punctual::{JobId, State};
use punctual_check::{
    History, Options, Undone, Verdict, Word,
    event::{
        Accepted, Answer, CallId, Due, Dumped, Ended, Hex, Line, Op, Reservation, Reservations, Said, Wanted,
        What,
    },
    judge,
};

const SECOND: u64 = 1_000_000_000;
/// When the server is killed.
const KILLED: u64 = 10 * SECOND;
/// Answers of the last 2 s may be lost.
const TAIL: Duration = Duration::from_secs(2);
const IN_TAIL: u64 = 9 * SECOND;
const BEFORE_TAIL: u64 = 7 * SECOND;
const CALL: CallId = CallId(Hex(7), 1);

fn id() -> JobId {
    JobId::derived("q", None, "job")
}

/// One process' lines.
#[derive(Default)]
struct File(Vec<Line>);

impl File {
    fn note(&mut self, m: u64, what: What) {
        self.0.push(Line { m, w: m / 1_000_000, n: 0, what });
    }

    /// A call and its answer.
    fn call(&mut self, m: u64, op: Op, answer: Answer) {
        let n = self.0.len() as u64 + 1;
        self.0.push(Line { m, w: m / 1_000_000, n, what: What::Invoke(op) });
        self.0.push(Line { m: m + 1_000, w: m / 1_000_000, n, what: What::Ok(answer) });
    }

    fn enqueue(&mut self, m: u64) {
        let sum = Hex::fingerprint(b"1");
        let (queue, due) = ("q".to_owned(), Due::Now);
        let job = Wanted {
            id: id(),
            queue,
            sum,
            due,
            unique: None,
            group: None,
            concurrency: None,
            expires: None,
            expect: None,
            is_tick: false,
        };
        let answer = Accepted::Inserted { run_at: 0, id: None };
        self.call(m, Op::Enqueue { call: CALL, jobs: vec![job] }, Answer::Enqueue(vec![answer]));
    }

    /// A run that is done at once.
    fn run(&mut self, m: u64, fence: u64) {
        let sum = Hex::fingerprint(b"1");
        let row = Reservation {
            id: id(),
            fence,
            attempt: 1,
            expired_leases: 0,
            company: false,
            max_attempts: 20,
            run_at: 0,
            created_at: 0,
            until: m / 1_000_000 + 15_000,
            lasts: 15_000,
            sum,
        };
        let batch = Reservations { now: m / 1_000_000, jobs: vec![row], reclaimed: vec![] };
        self.call(m, Op::Reserve { call: CallId(Hex(8), fence) }, Answer::Reserve(batch));
        self.note(m + 2_000, What::Start { id: id(), fence, sum });
        let runs = vec![Ended { id: id(), fence, verdict: Said::Ack }];
        let answer = Answer::Settle { states: vec![Some(State::Done)], away: vec![], then: None };
        self.call(m + 3_000, Op::Settle { runs, then: None }, answer);
    }
}

fn verdict(mut file: File, at_rest: Option<State>, undone_max: Duration) -> Verdict {
    file.note(KILLED, What::ServerKilled { since: KILLED - 1_000 });
    let job = |state| Dumped { id: id(), state, reason: None, attempt: 1, expired_leases: 0, run_at: 0 };
    file.note(
        20 * SECOND,
        What::Dump { now: 20_000, jobs: at_rest.map(job).into_iter().collect(), last: true },
    );
    judge(&History::of([file.0.as_slice()]), Options { undone_max, ..Options::default() })
}

#[test]
fn a_job_of_the_last_moments_may_be_lost_and_is_counted() {
    let lost = |m, undone_max| {
        let mut file = File::default();
        file.enqueue(m);
        verdict(file, None, undone_max)
    };
    let told = lost(IN_TAIL, TAIL);
    assert_eq!((told.verdict, told.undone), (Word::Valid, Undone { lost: 1, again: 0 }), "{told}");
    assert_eq!((told.lost, told.server_kills), (0, 1));
    for (m, undone_max) in [(IN_TAIL, Duration::ZERO), (BEFORE_TAIL, TAIL), (KILLED + SECOND, TAIL)] {
        let told = lost(m, undone_max);
        assert_eq!((told.verdict, told.lost, told.undone.lost), (Word::Invalid, 1, 0), "{told}");
    }
}

#[test]
fn what_ended_in_the_last_moments_may_run_again_and_is_counted() {
    let again = |m, undone_max| {
        let mut file = File::default();
        file.enqueue(SECOND);
        file.run(m, 1);
        file.run(12 * SECOND, 2);
        verdict(file, Some(State::Done), undone_max)
    };
    let told = again(IN_TAIL, TAIL);
    assert_eq!((told.verdict, told.undone), (Word::Valid, Undone { lost: 0, again: 1 }), "{told}");
    for (m, undone_max) in [(IN_TAIL, Duration::ZERO), (BEFORE_TAIL, TAIL)] {
        let told = again(m, undone_max);
        assert_eq!((told.verdict, told.count("D4")), (Word::Invalid, 1), "{told}");
    }
}

#[test]
fn a_fence_never_goes_back_not_even_with_the_server() {
    let mut file = File::default();
    file.enqueue(SECOND);
    file.run(IN_TAIL, 2);
    file.run(12 * SECOND, 1);
    let told = verdict(file, Some(State::Done), TAIL);
    assert_eq!((told.verdict, told.fence_regressions), (Word::Invalid, 1), "{told}");
}
