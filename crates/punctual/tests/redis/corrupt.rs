//! Records that something else has written over: nobody can run them, and they harm nobody else.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use punctual::{
    Client, JobId, NewJob, Payload, State, Timestamp, Unique, When,
    job::{Concurrency, Filter, LogLine, Notes},
    store::{
        Acted, DocOp, EndReason, Finding, Heartbeat, Keep, LeaseStatus, Precondition, QueueSettings, Settled,
        Settlement, Store, Take, Upcoming, Verdict,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};

use tokio::time::timeout;

use crate::{jobs, key, reserve, server::Server};

const HOUR: Duration = Duration::from_hours(1);

/// A store, and a connection of somebody else's that writes over what it keeps.
struct Spoilt {
    _server: Server,
    url: String,
    store: Arc<RedisStore>,
    client: Client,
    raw: redis::Connection,
}

impl Spoilt {
    async fn start(clock: Clock) -> Self {
        let server = Server::start(&[]);
        let url = server.url();
        let raw = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
        let store = Arc::new(RedisStore::open(&url, clock).await.unwrap());
        Self { _server: server, url, client: Client::new(store.clone()), store, raw }
    }

    /// What stands of a job in one of the store's hashes.
    fn row(&mut self, hash: &str, id: JobId) -> Vec<u8> {
        redis::cmd("HGET").arg(key(&self.url, hash)).arg(id.as_bytes()).query(&mut self.raw).unwrap()
    }

    /// Writes it over.
    fn spoil(&mut self, hash: &str, id: JobId, row: &[u8]) {
        let mut cmd = redis::cmd("HSET");
        let () = cmd.arg(key(&self.url, hash)).arg(id.as_bytes()).arg(row).query(&mut self.raw).unwrap();
    }
}

/// What may stand where a record of ours stood: a byte, a part, text, and one whose options are no JSON.
#[tokio::test]
async fn what_can_not_be_read_ends_dead_and_harms_nobody() {
    let mut spoilt = Spoilt::start(Clock::System).await;
    let (store, client) = (spoilt.store.clone(), spoilt.client.clone());
    let written = client.push(jobs(&client, 8)).await.unwrap();
    let ids: Vec<_> = written.iter().map(|answer| answer.id().unwrap()).collect();
    for (n, id) in ids.iter().enumerate().take(4) {
        let whole = spoilt.row("j", *id);
        let torn = match n {
            0 => vec![0],
            1 => whole[..10].to_vec(),
            2 => vec![b'x'; 100],
            _ => whole.iter().enumerate().map(|(at, byte)| if at == 16 { 0xff } else { *byte }).collect(),
        };
        spoilt.spoil("j", *id, &torn);
    }
    let batch = store.reserve(&reserve(1, 8)).await.unwrap();
    assert_eq!(batch.jobs.iter().map(|reserved| reserved.job.id).collect::<Vec<_>>(), ids[4..]);
    let ack = |lease| Settlement { lease, verdict: Verdict::Ack };
    let acks: Vec<_> = batch.jobs.iter().map(|reserved| ack(reserved.lease)).collect();
    store.settle(&acks, None).await.unwrap();
    let counts = client.count(None).await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.dead, counts.done), (0, 0, 4, 4));
    let dead = Filter::all().state([State::Dead]);
    let page = client.list(&punctual::store::List { filter: dead, after: None, limit: 10 }).await.unwrap();
    assert!(page.jobs.iter().all(|job| job.reason.as_deref() == Some("corrupt")), "{:#?}", page.jobs);
    assert_eq!(page.jobs.len(), 4);
    // How many bytes they had they don't say: an audit counts anew.
    let found = client.audit(true, |_| ()).await.unwrap().findings;
    assert_eq!(found.iter().map(|finding| &*finding.what).collect::<Vec<_>>(), ["counter"]);
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
}

/// S2: a take gives what can be read, each job once, whichever byte of the others was written over.
#[tokio::test]
async fn a_take_is_stopped_by_no_byte_of_a_record() {
    let mut spoilt = Spoilt::start(Clock::System).await;
    let (store, client) = (spoilt.store.clone(), spoilt.client.clone());
    let make = |n| {
        let mut made = jobs(&client, n);
        for job in &mut made {
            job.payload = Payload::json("1");
            job.headers.insert("a".to_owned(), "b".to_owned());
            job.unique = Some(Unique::key(job.id.to_string()));
        }
        made
    };
    let one = make(1);
    client.push(one.clone()).await.unwrap();
    let bytes = spoilt.row("j", one[0].id).len();
    let (torn, good) = (make(bytes), make(1));
    client.push(torn.clone()).await.unwrap();
    client.push(good.clone()).await.unwrap();
    for (at, job) in torn.iter().enumerate() {
        let mut row = spoilt.row("j", job.id);
        row[at] = 0xfe;
        spoilt.spoil("j", job.id, &row);
    }
    let take = Take { queue: "mail".into(), n: bytes + 2, older_than: Duration::ZERO };
    let taken: Vec<JobId> = store.take(&take).await.unwrap().iter().map(|job| job.id).collect();
    assert!(taken.contains(&one[0].id) && taken.contains(&good[0].id), "{} jobs", taken.len());
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len());
    assert_eq!(store.take(&take).await.unwrap().len(), 0);
}

/// S2: a past that can't be read costs its job what it was, and no settle of others.
#[tokio::test]
async fn a_past_that_can_not_be_read_stops_no_settle() {
    let mut spoilt = Spoilt::start(Clock::System).await;
    let (store, client) = (spoilt.store.clone(), spoilt.client.clone());
    client.push(jobs(&client, 3)).await.unwrap();
    let runs = store.reserve(&reserve(1, 3)).await.unwrap().jobs;
    let notes = Notes { log: vec![LogLine { attempt: 1, at_ms: 0, text: "hi".into() }], ..Notes::default() };
    let beat = Heartbeat { lease: runs[1].lease, notes: Some(notes.clone()), company: false, lasts: None };
    store.extend(std::slice::from_ref(&beat)).await.unwrap();
    for rubbish in [&b"\xff"[..], b"", &[128, 255, 0]] {
        spoilt.spoil("x", runs[1].job.id, rubbish);
        assert_eq!(store.extend(std::slice::from_ref(&beat)).await.unwrap(), [LeaseStatus::Held]);
    }
    let acks: Vec<_> =
        runs.iter().map(|run| Settlement { lease: run.lease, verdict: Verdict::Ack }).collect();
    let (settled, _) = store.settle(&acks, None).await.unwrap();
    assert_eq!(settled, [Settled::Settled(State::Done, None); 3]);
    assert_eq!(client.count(None).await.unwrap().done, 3);
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
}

/// S11: the end of a run whose record can't be read is the job's, and the settle answers why.
#[tokio::test]
async fn a_settle_ends_a_job_that_can_not_be_read() {
    let mut spoilt = Spoilt::start(Clock::System).await;
    let (store, client) = (spoilt.store.clone(), spoilt.client.clone());
    client.push(jobs(&client, 2)).await.unwrap();
    let runs = store.reserve(&reserve(1, 2)).await.unwrap().jobs;
    spoilt.spoil("j", runs[0].job.id, b"x");
    let dead_of = |lease| Settlement { lease, verdict: Verdict::Dead { error: "no".into() } };
    let (settled, _) = store.settle(&[dead_of(runs[0].lease), dead_of(runs[1].lease)], None).await.unwrap();
    let dead = |reason| Settled::Settled(State::Dead, reason);
    assert_eq!(settled, [dead(Some(EndReason::Corrupt)), dead(None)]);
    let counts = client.count(None).await.unwrap();
    assert_eq!((counts.running, counts.dead), (0, 2));
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
}

/// S9: a lease that something else has written over is dropped when its time is over, and an audit makes its job dead.
#[tokio::test]
async fn a_run_that_can_not_be_read_holds_nobody_up() {
    let clock = ManualClock::new(Timestamp::from_ms(1_795_000_000_000).unwrap());
    let mut spoilt = Spoilt::start(Clock::Manual(clock.clone())).await;
    let (store, client) = (spoilt.store.clone(), spoilt.client.clone());
    client.push(jobs(&client, 2)).await.unwrap();
    let batch = store.reserve(&reserve(1, 2)).await.unwrap();
    let [torn, whole] = batch.jobs.as_slice() else { panic!("{batch:?}") };
    // Torn behind its fence, it is left out of a repetition, which goes on to the others.
    let row = spoilt.row("r", torn.job.id);
    spoilt.spoil("r", torn.job.id, &row[..20]);
    assert_eq!(store.reserve(&reserve(1, 2)).await.unwrap().jobs, std::slice::from_ref(whole));
    // It stops no heartbeat of the others, which come with its own.
    for lasts in [None, Some(Duration::from_secs(15))] {
        let beats = [torn, whole].map(|job| Heartbeat { lasts, ..Heartbeat::from(job.lease) });
        assert_eq!(store.extend(&beats).await.unwrap(), [LeaseStatus::Lost, LeaseStatus::Held]);
    }
    spoilt.spoil("r", torn.job.id, b"x");
    // In steps: one of the whole time would be a jump of the clock.
    for number in 2..=9 {
        clock.advance(Duration::from_secs(2));
        let again = store.reserve(&reserve(number, 2)).await.unwrap();
        assert!(again.jobs.iter().all(|reserved| reserved.job.id == whole.job.id), "{again:?}");
    }
    assert_eq!(client.get(whole.job.id).await.unwrap().unwrap().attempt, 2);
    let found = client.audit(true, |_| ()).await.unwrap().findings;
    assert_eq!(
        found.iter().map(|finding| (finding.id, &*finding.what)).collect::<Vec<_>>(),
        [(Some(torn.job.id), "orphan")]
    );
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
    assert_eq!(client.get(torn.job.id).await.unwrap().unwrap().state, State::Dead);
}

/// An audit ends what can't be read, too, before anybody reserves it.
#[tokio::test]
async fn an_audit_ends_what_can_not_be_read() {
    let mut spoilt = Spoilt::start(Clock::System).await;
    let client = spoilt.client.clone();
    let id = client.push(jobs(&client, 1)).await.unwrap()[0].id().unwrap();
    let whole = spoilt.row("j", id);
    spoilt.spoil("j", id, &whole[..10]);
    let found = client.audit(true, |_| ()).await.unwrap().findings;
    assert!(found.iter().any(|finding| (finding.id, &*finding.what) == (Some(id), "corrupt")), "{found:?}");
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
    let counts = client.count(None).await.unwrap();
    assert_eq!((counts.waiting, counts.dead), (0, 1));
}

/// An audit ends what can't be read also where only its place says of which queue it is, and lets go on what waits behind it.
/// What stands in no place, and does not say it either, is left to people.
#[tokio::test]
async fn an_audit_ends_what_does_not_say_its_queue() {
    let mut spoilt = Spoilt::start(Clock::System).await;
    let (store, client) = (spoilt.store.clone(), spoilt.client.clone());
    let mut new = jobs(&client, 8);
    for job in &mut new[..4] {
        job.concurrency = Some(Concurrency { key: "k".into(), limit: 1 });
    }
    new[4].group = Some("g".into());
    new[4].run_at = When::In(HOUR);
    let ids: Vec<_> = client.push(new).await.unwrap().iter().map(|answer| answer.id().unwrap()).collect();
    let batch = store.reserve(&reserve(1, 3)).await.unwrap();
    let runs: Vec<_> = batch.jobs.iter().map(|run| run.job.id).collect();
    assert_eq!(runs, [ids[0], ids[5], ids[6]]);
    store.settle(&[Settlement { lease: batch.jobs[0].lease, verdict: Verdict::Ack }], None).await.unwrap();
    // Now it is the turn of the second of the key, and two are blocked behind it. Torn are this one, the group's only job, one that
    // runs, and one that waits.
    let torn: Vec<_> = [1, 4, 5, 7].map(|n| ids[n]).to_vec();
    for id in &torn {
        let whole = spoilt.row("j", *id);
        // One is whole but for its queue, which is none.
        let rubbish = if *id == ids[7] { [&whole[..2], b"???", &whole[5..]].concat() } else { vec![0] };
        spoilt.spoil("j", *id, &rubbish);
    }
    let nowhere = client.make_id();
    spoilt.spoil("j", nowhere, b"0");
    let corrupt = |found: &[Finding], repaired: bool| -> BTreeSet<JobId> {
        let is_it = |finding: &&Finding| finding.what == "corrupt" && finding.repaired == repaired;
        found.iter().filter(is_it).map(|finding| finding.id.unwrap()).collect()
    };
    let all: BTreeSet<_> = torn.iter().copied().chain([nowhere]).collect();
    assert_eq!(corrupt(&client.audit(false, |_| ()).await.unwrap().findings, false), all);
    let found = client.audit(true, |_| ()).await.unwrap().findings;
    assert_eq!(corrupt(&found, true), all, "{found:#?}");
    assert_eq!(corrupt(&found, false), BTreeSet::new(), "{found:#?}");
    // It is in a queue of its own now, as long as dead jobs are kept there.
    assert_eq!(store.queues(None).await.unwrap(), ["found", "mail"]);
    assert_eq!(client.count(Some("found")).await.unwrap().dead, 1);
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);

    let counts = client.count(None).await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.dead), (2, 1, 5), "{counts:?}");
    // Of this one nothing but the queue was not known.
    let mended = client.get(ids[7]).await.unwrap().unwrap();
    assert_eq!(
        (mended.state, &*mended.queue, mended.reason.as_deref()),
        (State::Dead, "mail", Some("corrupt"))
    );
    // Behind the torn one of its key.
    for (number, left) in [(2, 1), (3, 0)] {
        let batch = store.reserve(&reserve(number, 8)).await.unwrap();
        let [run] = batch.jobs.as_slice() else { panic!("{batch:?}") };
        store.settle(&[Settlement { lease: run.lease, verdict: Verdict::Ack }], None).await.unwrap();
        assert_eq!(client.count(None).await.unwrap().waiting, left);
    }
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
    // One that can be read again can be removed by its id.
    assert!(matches!(client.delete(ids[7]).await.unwrap(), Acted::Done(..)));
    assert_eq!(client.get(ids[7]).await.unwrap(), None);
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
}

/// A torn job that had ended counts no more among the live ones, and stands once among those that ended: one whose past says how it
/// ended as that, any other as dead.
#[tokio::test]
async fn an_audit_tells_what_ended_before_it_was_torn() {
    let mut spoilt = Spoilt::start(Clock::System).await;
    let (store, client) = (spoilt.store.clone(), spoilt.client.clone());
    client.push(jobs(&client, 3)).await.unwrap();
    let runs = store.reserve(&reserve(1, 2)).await.unwrap().jobs;
    let acks: Vec<_> =
        runs.iter().map(|run| Settlement { lease: run.lease, verdict: Verdict::Ack }).collect();
    store.settle(&acks, None).await.unwrap();
    let [known, unknown] = [runs[0].job.id, runs[1].job.id];
    spoilt.spoil("j", known, b"0");
    spoilt.spoil("x", unknown, b"\xff");
    // A second place of the one whose past is whole.
    let mut end = vec![0, 0, 1, 3];
    end.extend([&[0; 6], known.as_bytes().as_slice(), &[0; 4]].concat());
    let () = redis::cmd("ZADD").arg(key(&spoilt.url, "e")).arg(0).arg(end).query(&mut spoilt.raw).unwrap();
    let found = client.audit(true, |_| ()).await.unwrap().findings;
    let mut found: Vec<_> = found.iter().map(|finding| (finding.id, &*finding.what)).collect();
    found.sort_unstable();
    let mut expected = [(Some(known), "two_places"), (Some(unknown), "corrupt")];
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
    let counts = client.count(None).await.unwrap();
    assert_eq!((counts.waiting, counts.done, counts.dead), (1, 1, 1), "{counts:?}");
}

/// An audit finds and mends what something else has changed beside the records, key by key; whatever it was, nothing is left
/// to find behind it, and no job is lost.
#[tokio::test]
async fn an_audit_mends_what_is_kept_beside_the_records() {
    let mut spoilt = Spoilt::start(Clock::System).await;
    let (store, client) = (spoilt.store.clone(), spoilt.client.clone());
    let plain = || jobs(&client, 1).remove(0);
    let remembered = JobId::derived("mail", None, "once");
    let expiring = NewJob { run_at: When::In(HOUR), expires_at: Some(When::In(2 * HOUR)), ..plain() };
    let holding = NewJob { run_at: When::In(HOUR), unique: Some(Unique::key("k")), ..plain() };
    let windowed = NewJob { run_at: When::In(HOUR), unique: Some(Unique::key("w").window(HOUR)), ..plain() };
    let grouped = || NewJob { group: Some("g".to_owned()), ..plain() };
    let ran = [NewJob { id: remembered, ..plain() }, grouped(), grouped()];
    client
        .queue("mail")
        .set(QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() })
        .await
        .unwrap();
    client.push(ran.into()).await.unwrap();
    let batch = store.reserve(&reserve(1, 3)).await.unwrap();
    let (once, others): (Vec<_>, Vec<_>) = batch.jobs.iter().partition(|run| run.job.id == remembered);
    let settled = [
        Settlement { lease: once[0].lease, verdict: Verdict::Ack },
        Settlement {
            lease: others[0].lease,
            verdict: Verdict::Retry { at: When::In(HOUR), error: "no".into() },
        },
    ];
    store.settle(&settled, None).await.unwrap();
    client.push(vec![expiring, holding, windowed]).await.unwrap();
    let put =
        DocOp::Put { key: "a document".to_owned(), precondition: Precondition::Always, value: b"1".to_vec() };
    store.doc(&put).await.unwrap();
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
    let counts = client.count(None).await.unwrap();

    // The key that is spoilt, how, and what is found.
    let member: &[u8] = &[&[0, 0, 1][..], &[0; 6], &[7; 16]].concat();
    for (name, spoil, what) in [
        ("x", vec!["HSET", "nobody", "x"], "no_record"),
        ("r", vec!["HSET", "nobody", "a row of a run"], "no_record"),
        ("o", vec!["ZADD", "0"], "no_record"),
        ("o", vec!["DEL"], "orphan"),
        ("v", vec!["DEL"], "stale_key"),
        ("v", vec!["ZADD", "0"], "corrupt"),
        ("u", vec!["DEL"], "stale_key"),
        ("u", vec!["HSET", "0123456789abcdef", "an id of sixteen\0\0\0\0\0\0"], "stale_key"),
        ("u", vec!["HSET", "nobody", "short"], "corrupt"),
        ("o", vec!["ZADD", "0", "short"], "corrupt"),
        ("e", vec!["ZADD", "0", "short"], "corrupt"),
        ("p", vec!["HSET", "nobody", "short"], "no_record"),
        ("m", vec!["HSET", "q of no queue 12345", "123456"], "no_record"),
        ("k", vec!["DEL"], "no_record"),
        ("m", vec!["DEL"], "no_record"),
        ("a", vec!["DEL"], "no_record"),
        ("d", vec!["HSET", "a document", "short"], "corrupt"),
        ("f", vec!["ZADD", "0", "no document"], "no_record"),
        ("f", vec!["DEL"], "no_record"),
        ("g", vec!["DEL"], "stale_key"),
        ("g", vec!["ZADD", "0", "a run of no job, in no queue at all"], "stale_key"),
        ("h", vec!["DEL"], "orphan"),
        ("h", vec!["ZADD", "0"], "corrupt"),
        ("h", vec!["ZADD", "0", "abcd: the time of somebody!"], "no_record"),
        ("h", vec!["ZADD", "0", "abcr: the place of no group"], "two_places"),
        ("y", vec!["DEL"], "orphan"),
        ("y", vec!["HSET", "nobody", "short"], "corrupt"),
        ("y", vec!["HSET", "a group of no queue", "w: it stands at no place.."], "orphan"),
        ("c", vec!["DEL"], "counter"),
        ("c", vec!["HSET", "\0\0\u{1}b", "-5"], "counter"),
        ("c", vec!["HSET", "\0\0\u{1}r", "none"], "counter"),
        ("c", vec!["HSET", "\0\0\u{1}e", "none"], "counter"),
    ] {
        let mut cmd = redis::cmd(spoil[0]);
        cmd.arg(key(&spoilt.url, name));
        for word in &spoil[1..] {
            cmd.arg(*word);
        }
        if spoil == ["ZADD", "0"] {
            cmd.arg(member);
        }
        let () = cmd.query(&mut spoilt.raw).unwrap();
        client.count(None).await.unwrap_or_else(|e| panic!("{name} {spoil:?}: {e}"));
        for repairs in [false, true] {
            let found = client.audit(repairs, |_| ()).await.unwrap().findings;
            assert!(found.iter().any(|finding| finding.what == what), "{name} {spoil:?}: {found:?}");
            assert!(found.iter().all(|finding| finding.repaired == repairs), "{found:?}");
        }
        assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, [], "{name} {spoil:?}");
        assert_eq!(client.count(None).await.unwrap(), counts, "{name} {spoil:?}");
    }
    let again = client.push(vec![NewJob { unique: Some(Unique::key("k")), ..plain() }]).await.unwrap();
    assert!(!again[0].is_new(), "the key was given back to who holds it");
}

/// S13: members that another program wrote keep nobody from counting the others, and are passed once.
#[tokio::test]
async fn members_of_no_job_hide_no_other_job_from_counts() {
    let mut spoilt = Spoilt::start(Clock::System).await;
    let client = spoilt.client.clone();
    client.push(jobs(&client, 4)).await.unwrap();
    let lease = spoilt.store.reserve(&reserve(1, 1)).await.unwrap().jobs[0].lease;
    spoilt.store.settle(&[Settlement { lease, verdict: Verdict::Ack }], None).await.unwrap();
    let before = client.count(None).await.unwrap();
    assert_eq!((before.due, before.done), (3, 1));
    let far = |begin: &[u8]| [begin, &[u8::MAX; 40]].concat();
    for (name, member) in [
        ("t", vec![]),
        ("t", b"q".to_vec()),
        ("t", b"\0\0\0\x01".to_vec()),
        ("t", far(b"\0\0\0\x01")),
        ("t", far(b"\0\0\0\x20")),
        ("h", b"\0\0\0".to_vec()),
        ("h", b"\0\0\0d".to_vec()),
        ("h", far(b"\0\0\0d")),
        ("h", far(b"\0\0\0k")),
        ("e", vec![]),
        ("e", far(b"\0\0\0\x02")),
        ("e", vec![u8::MAX; 40]),
    ] {
        let (table, score) = (key(&spoilt.url, name), 0);
        let () = redis::cmd("ZADD").arg(&table).arg(score).arg(&member).query(&mut spoilt.raw).unwrap();
        let counts = timeout(HOUR / 60, client.count(None)).await.expect("it ends");
        let counts = counts.unwrap_or_else(|e| panic!("{name} {member:?}: {e}"));
        let all = [counts.due, counts.bytes, counts.done];
        assert_eq!(all, [before.due, before.bytes, before.done], "{name} {member:?}");
        let upcoming = Upcoming { queue: None, bucket: HOUR, buckets: 9 };
        assert_eq!(client.upcoming(&upcoming).await.unwrap().overdue, 3, "{name} {member:?}");
        let () = redis::cmd("ZREM").arg(&table).arg(&member).query(&mut spoilt.raw).unwrap();
    }
    assert_eq!(client.count(None).await.unwrap(), before);
}

/// S2: of a call that a crash cut off within the server's log nothing comes back where the log is mended as the guide says,
/// however often the server starts.
#[tokio::test]
async fn a_call_that_a_crash_cut_off_comes_back_in_no_part() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.url();
    let client = Client::new(Arc::new(RedisStore::open(&url, Clock::System).await.unwrap()));
    client.push(jobs(&client, 1)).await.unwrap();
    client.push(jobs(&client, 2)).await.unwrap();
    server.kill();
    // The end of the second call: that it is over, and a part of what it did last.
    cut_log(&server, 60);
    for _ in 0..2 {
        server.restart();
        let client = Client::new(Arc::new(RedisStore::open(&url, Clock::System).await.unwrap()));
        client.push(jobs(&client, 1)).await.unwrap();
        server.kill();
    }
    server.restart();
    let client = Client::new(Arc::new(RedisStore::open(&url, Clock::System).await.unwrap()));
    assert_eq!(client.count(None).await.unwrap().waiting, 3);
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
}

/// Cuts so many bytes off the log of a server that is gone.
fn cut_log(server: &Server, bytes: u64) {
    let log = std::fs::OpenOptions::new().write(true).open(server.log().unwrap()).unwrap();
    log.set_len(log.metadata().unwrap().len() - bytes).unwrap();
}
