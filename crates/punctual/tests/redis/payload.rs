//! Only reserve, take, get and list read long payloads, and an audit. A store of format 3, in which payloads were parts of records, is
//! upgraded by the first call that stores something new.

use std::{
    io::{BufRead, BufReader, Lines, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use punctual::{
    Client, JobId, NewJob, OnConflict, Payload, State, Timestamp, Unique, When,
    job::Filter,
    store::{
        Action, Audit, CallId, Enqueued, Finding, Keep, List, QueueOp, QueueReply, QueueSettings, Reserved,
        Settlement, Store, Take, Verdict,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};

use super::{key, reserve, server::Server};

/// The bytes of a payload that is stored apart: ten of them are a mebibyte and a bit.
const LONG: usize = 105 << 10;

/// How long the server may take to say what it has run.
const SAID_MAX: Duration = Duration::from_secs(30);

const QUEUE: &str = "mail";

/// All commands that a server runs.
struct Monitor<'a> {
    server: &'a Server,
    payloads: String,
    lines: Lines<BufReader<UnixStream>>,
    said: u32,
}

impl<'a> Monitor<'a> {
    fn start(server: &'a Server, url: &str) -> Self {
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        stream.set_read_timeout(Some(SAID_MAX)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "+OK");
        Self { server, payloads: format!("\"{}\"", key(url, "b")), lines, said: 0 }
    }

    /// How many payloads were read since the last look. Each is read by itself.
    fn reads(&mut self) -> usize {
        self.said += 1;
        let mark = format!("looked {}", self.said);
        self.server.say(&["ECHO", &mark]);
        let mut reads = 0;
        loop {
            let line = self.lines.next().unwrap().unwrap();
            if line.contains(&mark) {
                return reads;
            }
            // Scripts name the key among others; a command names it first.
            let command: Vec<&str> = line.split(' ').skip(3).take(2).collect();
            if let [name, first] = command[..]
                && first == self.payloads
                && !["\"HSET\"", "\"HDEL\"", "\"HLEN\""].contains(&name)
            {
                assert_eq!(name, "\"HGET\"", "{line:.200}");
                reads += 1;
            }
        }
    }
}

fn long(of: &Client, byte: u8) -> NewJob {
    NewJob::new(of.make_id(), "k", QUEUE, Payload::json(vec![byte; LONG]))
}

fn settle(runs: &[Reserved], mut verdict: impl FnMut(usize) -> Verdict) -> Vec<Settlement> {
    let settlement = |(n, run): (usize, &Reserved)| Settlement { lease: run.lease, verdict: verdict(n) };
    runs.iter().enumerate().map(settlement).collect()
}

/// All findings of a whole audit.
async fn audit(store: &RedisStore, repair: bool) -> Vec<Finding> {
    let (mut audit, mut findings) = (Audit { repair, ..Audit::default() }, Vec::new());
    loop {
        let slice = store.audit(audit.clone()).await.unwrap();
        findings.extend(slice.findings);
        let Some(next) = slice.next else { return findings };
        audit.from = next;
    }
}

async fn settings_of(store: &RedisStore) -> QueueSettings {
    match store.queue(QUEUE, &QueueOp::Show).await.unwrap() {
        QueueReply::Info(info) => info.settings,
        other => panic!("{other:?}"),
    }
}

fn keeping(keep: Keep) -> QueueOp {
    let settings = QueueSettings { done: keep, cancelled: keep, dead: keep, ..QueueSettings::default() };
    QueueOp::Set(Box::new(settings))
}

#[tokio::test]
async fn only_what_hands_a_payload_out_reads_it() {
    let server = Server::start(&[]);
    let url = server.url();
    let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
    let store = Arc::new(RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap());
    let client = Client::new(store.clone());
    let mut monitor = Monitor::start(&server, &url);
    let mut calls = (1..).map(|number| CallId { instance: 9, number });
    let mut enqueue = async |jobs: &[NewJob]| store.enqueue(calls.next().unwrap(), jobs).await.unwrap();

    let mut jobs: Vec<NewJob> = (0..8).map(|n| long(&client, b'0' + n)).collect();
    jobs[7].unique = Some(Unique::key("u").on_conflict(OnConflict::Replace));
    enqueue(&jobs[..1]).await;
    enqueue(&jobs).await;
    let again = enqueue(&jobs).await;
    assert!(again.iter().all(|one| matches!(one, Enqueued::Duplicate(_))), "{again:?}");
    let replaced = NewJob { id: client.make_id(), ..jobs[7].clone() };
    enqueue(&[replaced]).await;
    assert_eq!(monitor.reads(), 0, "enqueue");

    // A mebibyte is handed out at once, whatever else is due.
    jobs.extend((0..4).map(|_| long(&client, b'8')));
    enqueue(&jobs[8..]).await;
    let runs = store.reserve(&reserve(1, 50)).await.unwrap().jobs;
    assert_eq!((runs.len(), monitor.reads()), (9, 9), "reserve");
    assert!(runs.iter().all(|run| run.job.payload.bytes.len() == LONG));
    assert_eq!(store.reserve(&reserve(1, 50)).await.unwrap().jobs.len(), 9);
    assert_eq!(monitor.reads(), 9, "the same reserve again");
    let retry = || Verdict::Retry { at: When::Now, error: "e".to_owned() };
    let verdict = |n| match n % 4 {
        0 => retry(),
        1 => Verdict::Snooze { after: Duration::from_secs(1), reason: None },
        2 => Verdict::Release,
        _ => Verdict::Dead { error: "e".to_owned() },
    };
    store.settle(&settle(&runs, verdict), None).await.unwrap();
    assert_eq!(monitor.reads(), 0, "settle");
    clock.advance(Duration::from_secs(2));
    let runs = store.reserve(&reserve(2, 2)).await.unwrap().jobs;
    assert_eq!((runs.len(), monitor.reads()), (2, 2), "reserve");
    // Their leases expire. First the clock jumps, and they have a pause.
    for number in 3..5 {
        clock.advance(Duration::from_secs(16));
        store.reserve(&reserve(number, 0)).await.unwrap();
    }
    assert_eq!((store.count(None).await.unwrap().running, monitor.reads()), (0, 0), "expired leases");
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let edit = |bytes| Action::EditPayload(Payload::json(vec![b'9'; bytes]));
    let stored = || server.say(&["HLEN", &key(&url, "b")]).parse::<u32>().unwrap();
    let before = stored();
    for (action, fewer) in
        [(Action::RunNow, 0), (edit(10), 1), (edit(LONG), 0), (edit(LONG), 0), (Action::RescheduleBy(-5), 0)]
    {
        store.act(&[ids[9].into()], &action).await.unwrap();
        assert_eq!(stored(), before - fewer, "{action:?}");
    }
    let cancel = Action::Cancel { reason: None };
    for action in [cancel, Action::Retry, Action::Delete] {
        store.act(&[ids[9].into(), ids[10].into()], &action).await.unwrap();
    }
    assert_eq!(monitor.reads(), 0, "acts");
    assert_eq!(store.count(Some(QUEUE)).await.unwrap().total(), 10);
    store.get(ids[11]).await.unwrap().unwrap();
    assert_eq!(monitor.reads(), 1, "get");
    let list = List { filter: Filter::all().queue(QUEUE), after: None, limit: 3 };
    assert_eq!(store.list(&list).await.unwrap().jobs.len(), 3);
    assert_eq!(monitor.reads(), 3, "list");
    let take = Take { queue: QUEUE.to_owned(), n: 1, older_than: Duration::ZERO };
    let taken = store.take(&take).await.unwrap();
    assert_eq!((taken[0].payload.bytes.len(), monitor.reads()), (LONG, 1), "take");

    // Nothing of them stays.
    store.queue(QUEUE, &keeping(Keep::NOTHING)).await.unwrap();
    let runs = store.reserve(&reserve(5, 3)).await.unwrap().jobs;
    store.settle(&settle(&runs, |_| Verdict::Ack), None).await.unwrap();
    let alone = store.reserve(&reserve(6, 1)).await.unwrap().jobs;
    store.settle(&settle(&alone, |_| Verdict::Ack), None).await.unwrap();
    monitor.reads();
    store.queue(QUEUE, &QueueOp::Purge(1_000)).await.unwrap();
    store.sweep(1_000).await.unwrap();
    assert_eq!(monitor.reads(), 0, "purge and sweep");
    assert_eq!(store.count(None).await.unwrap().total(), 0);
    assert_eq!(server.say(&["EXISTS", &key(&url, "b"), &key(&url, "j")]), "0");
}

/// Rewrites a store as the format before had it: payloads in records, settings in one row.
const TO_FORMAT_3: &str = r"
    local records, payloads, state, settings = unpack(KEYS)
    local all = redis.call('HGETALL', records)
    for i = 1, #all, 2 do
        local id, rec = all[i], all[i + 1]
        local flags = string.byte(rec)
        if 128 <= flags then
            local at = 15 + flags % 2 * 6 + math.floor(flags / 2) % 2 * 6
            rec = string.char(flags - 128) .. string.sub(rec, 2, 5) .. struct.pack('>I3', struct.unpack('>I3', rec, 6) - 4)
                .. string.sub(rec, 9, at - 1) .. string.sub(rec, at + 4) .. redis.call('HGET', payloads, id)
            redis.call('HSET', records, id, rec)
        end
    end
    redis.call('DEL', payloads)
    all = redis.call('HGETALL', settings)
    for i = 1, #all, 2 do
        local field = all[i]
        if #field == 4 and string.sub(field, 4) == 'j' then
            local q = string.sub(field, 1, 3)
            redis.call('HSET', settings, q, redis.call('HGET', settings, q) .. all[i + 1])
            redis.call('HDEL', settings, field)
        end
    end
    redis.call('HSET', state, 'turn', string.sub(redis.call('HGET', state, 'turn'), 1, 32) .. '\0\3')
";

#[tokio::test]
async fn a_store_of_the_format_before_is_upgraded_by_the_first_write() {
    for upgrader in 0..6 {
        let server = Server::start(&[]);
        let url = server.url();
        let store = super::open(&url).await;
        let client = Client::new(store.clone());
        let settings = QueueSettings {
            max_jobs: Some(77),
            done: Keep { count: 9, ..Keep::SHORT },
            ..QueueSettings::default()
        };
        store.queue(QUEUE, &QueueOp::Set(Box::new(settings.clone()))).await.unwrap();
        let mut jobs: Vec<NewJob> = (0..4).map(|n| long(&client, b'0' + n)).collect();
        jobs[1].run_at = When::In(Duration::from_hours(1));
        jobs[2].expires_at = Some(When::In(Duration::from_hours(1)));
        jobs[3].payload = Payload::json("1");
        store.enqueue(CallId { instance: 3, number: 1 }, &jobs).await.unwrap();
        let expected = [store.get(jobs[0].id).await.unwrap(), store.get(jobs[1].id).await.unwrap()];
        let running = store.reserve(&reserve(1, 1)).await.unwrap().jobs;
        let of_store = ["j", "b", "s", "i"].map(|name| key(&url, name));
        let [j, b, s, i] = of_store.each_ref().map(String::as_str);
        server.say(&["EVAL", TO_FORMAT_3, "4", j, b, s, i]);
        let format =
            || server.say(&["EVAL", "return string.byte(redis.call('HGET', KEYS[1], 'turn'), 34)", "1", s]);
        assert_eq!(format(), "3");

        // Reads change nothing.
        let store = super::open(&url).await;
        let client = Client::new(store.clone());
        assert_eq!(settings_of(&store).await, settings);
        assert_eq!(store.get(jobs[1].id).await.unwrap(), expected[1]);
        assert_eq!(store.get(jobs[0].id).await.unwrap().unwrap().payload, jobs[0].payload);
        assert_eq!(format(), "3");
        let new = long(&client, b'n');
        match upgrader {
            0 => drop(
                store.enqueue(CallId { instance: 5, number: 1 }, std::slice::from_ref(&new)).await.unwrap(),
            ),
            1 => {
                let runs = store.reserve(&reserve(2, 1)).await.unwrap().jobs;
                drop(store.settle(&settle(&runs, |_| Verdict::Release), None).await.unwrap());
            }
            2 => drop(store.queue(QUEUE, &QueueOp::Set(Box::new(settings.clone()))).await.unwrap()),
            3 => {
                let edit = Action::EditPayload(Payload::json(vec![b'e'; LONG]));
                drop(store.act(&[jobs[1].id.into()], &edit).await.unwrap());
            }
            4 => drop(store.settle(&settle(&running, |_| Verdict::Release), None).await.unwrap()),
            _ => {
                let other = NewJob { queue: "new".to_owned(), payload: Payload::json("1"), ..new.clone() };
                drop(store.enqueue(CallId { instance: 5, number: 1 }, &[other]).await.unwrap());
            }
        }
        assert_eq!(format(), "5", "upgrader {upgrader}");
        assert_eq!(audit(&store, false).await, []);
        // Rows of both formats stand beside each other.
        let stays = store.get(jobs[1].id).await.unwrap().unwrap();
        assert_eq!(stays.payload.bytes.len(), LONG);
        assert_eq!(settings_of(&store).await, settings);
        store
            .settle(&settle(&running, |_| Verdict::Retry { at: When::Now, error: "e".to_owned() }), None)
            .await
            .unwrap();
        let mut number = 10;
        loop {
            number += 1;
            let runs = store.reserve(&reserve(number, 50)).await.unwrap().jobs;
            if runs.is_empty() {
                break;
            }
            for run in &runs {
                let job = jobs.iter().chain([&new]).find(|job| job.id == run.lease.job);
                assert!(job.is_some_and(|job| job.payload == run.job.payload), "{:?}", run.job.id);
            }
            store.settle(&settle(&runs, |_| Verdict::Ack), None).await.unwrap();
        }
        let counts = store.count(Some(QUEUE)).await.unwrap();
        assert_eq!(counts.running, 0);
        assert_eq!(store.get(jobs[1].id).await.unwrap().unwrap().state, State::Waiting);
        assert_eq!(audit(&store, false).await, []);
    }
}

#[tokio::test]
async fn a_payload_that_is_lost_ends_its_job_and_harms_nobody() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = super::open(&url).await;
    let client = Client::new(store.clone());
    let jobs: Vec<NewJob> = (0..3).map(|n| long(&client, b'0' + n)).collect();
    store.enqueue(CallId { instance: 3, number: 1 }, &jobs).await.unwrap();
    let mut raw = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    let (lost, torn, stray) = (jobs[0].id, jobs[1].id, client.make_id());
    let b = key(&url, "b");
    let () = redis::cmd("HDEL").arg(&b).arg(lost.as_bytes()).query(&mut raw).unwrap();
    let () = redis::cmd("HSET").arg(&b).arg(torn.as_bytes()).arg("1").query(&mut raw).unwrap();
    let () = redis::cmd("HSET").arg(&b).arg(stray.as_bytes()).arg("1").query(&mut raw).unwrap();
    let found = audit(&store, false).await;
    let what: Vec<_> = found.iter().map(|finding| (finding.id, finding.what.as_ref())).collect();
    assert_eq!(what.len(), 2 + 2, "a place and a record, a torn one, and a stray one: {what:?}");
    // Without a repair, the next worker finds out.
    let runs = store.reserve(&reserve(1, 10)).await.unwrap().jobs;
    assert_eq!(runs.iter().map(|run| run.lease.job).collect::<Vec<_>>(), [jobs[2].id]);
    for id in [lost, torn] {
        let listed = store.list(&List { filter: Filter::all(), after: None, limit: 10 }).await.unwrap();
        let job = listed.jobs.into_iter().find(|job| job.id == id).unwrap();
        assert_eq!(job.state, State::Dead, "{job:?}");
    }
    assert!(store.get(lost).await.unwrap().unwrap().payload.bytes != jobs[0].payload.bytes);
    audit(&store, true).await;
    assert_eq!(server.say(&["HLEN", &b]), "2", "the whole one and the torn one");

    // An audit that finds it first frees its unique key, too.
    let keyed = || NewJob { unique: Some(Unique::key("u")), ..long(&client, b'4') };
    let first = keyed();
    store.enqueue(CallId { instance: 3, number: 2 }, std::slice::from_ref(&first)).await.unwrap();
    let () = redis::cmd("HDEL").arg(&b).arg(first.id.as_bytes()).query(&mut raw).unwrap();
    audit(&store, true).await;
    assert_eq!(store.get(first.id).await.unwrap().unwrap().state, State::Dead);
    let again = store.enqueue(CallId { instance: 3, number: 3 }, &[keyed()]).await.unwrap();
    assert!(again[0].is_new(), "{again:?}");
    assert_eq!(audit(&store, false).await, []);
}
