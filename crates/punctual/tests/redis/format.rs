//! Versions side by side: a store of another format, and settings that can't be read.

use std::collections::BTreeMap;

use punctual::{
    Ctx, JobRecord, NewJob, Payload, State, Timestamp, Unique, Worker,
    store::{
        Action, Audit, Counts, List, LockOp, LockReply, QueueOp, Reserved, Settlement, Take, ToolOp,
        ToolReply, Upcoming, Verdict, clock::ManualClock,
    },
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::*;

/// All keys of a store, as the server has them.
fn keys_of(server: &Server, url: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut raw = redis::Client::open(server.root_url()).unwrap().get_connection().unwrap();
    let prefix = url.split_once("prefix=").unwrap().1;
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(format!("{prefix}:*")).query(&mut raw).unwrap();
    keys.into_iter().map(|key| (key.clone(), redis::cmd("DUMP").arg(key).query(&mut raw).unwrap())).collect()
}

/// Runs a script on the row that each script reads first.
fn edit_turn(server: &Server, url: &str, edit: &str) {
    let script = format!("local row = redis.call('HGET', KEYS[1], 'turn') {edit}");
    server.say(&["EVAL", &script, "2", &key(url, "s"), &key(url, "i")]);
}

/// A newer process has upgraded the store.
const NEWER: &str = "redis.call('HSET', KEYS[1], 'turn', string.sub(row, 1, 32) .. '\\0\\6')";
/// It was made before formats had numbers, and before settings were kept as JSON.
const OLDER: &str =
    "redis.call('HSET', KEYS[1], 'turn', string.sub(row, 1, 32)) redis.call('HDEL', KEYS[2], '\\0\\0\\1j')";
/// And nobody has reserved from it yet.
const UNTOUCHED: &str = "redis.call('HDEL', KEYS[1], 'turn') redis.call('HDEL', KEYS[2], '\\0\\0\\1j')";

#[tokio::test]
async fn a_process_that_meets_another_format_changes_nothing() {
    let server = Server::start(&[]);
    let (newer, older) = (ErrorKind::Outdated, ErrorKind::Unsupported);
    for (edit, format, kind) in
        [(NEWER, "format 6", newer), (OLDER, "format 0", older), (UNTOUCHED, "format 0", older)]
    {
        let url = server.url();
        let store = open(&url).await;
        let client = Client::new(store.clone());
        client.push(jobs(&client, 2)).await.unwrap();
        let run = store.reserve(&reserve(1, 1)).await.unwrap().jobs.remove(0);
        edit_turn(&server, &url, edit);
        let before = keys_of(&server, &url);
        let (id, take) = (run.lease.job, Take { queue: "mail".into(), n: 1, older_than: Duration::ZERO });
        let ack = Settlement { lease: run.lease, verdict: Verdict::Ack };
        let beat = punctual::store::Heartbeat::from(run.lease);
        let list = List { filter: punctual::job::Filter::all(), after: None, limit: 10 };
        let upcoming = Upcoming { queue: None, bucket: Duration::from_secs(1), buckets: 1 };
        let pause = QueueOp::Pause { by: "me".into(), reason: String::new() };
        let errors = [
            store.enqueue(CallId { instance: 7, number: 1 }, &jobs(&client, 1)).await.err(),
            store.reserve(&reserve(2, 1)).await.err(),
            store.extend(&[beat]).await.err(),
            store.settle(&[ack], None).await.err(),
            store.take(&take).await.err(),
            store.act(&[id.into()], &Action::Cancel { reason: None }).await.err(),
            store.queue("mail", &pause).await.err(),
            store.queue("mail", &QueueOp::Purge(10)).await.err(),
            store.sweep(10).await.err(),
            store.audit(Audit { repair: true, ..Audit::default() }).await.err(),
            store.reshard(2).await.err(),
            store.get(id).await.err(),
            store.list(&list).await.err(),
            store.count(None).await.map(|_: Counts| ()).err(),
            store.upcoming(&upcoming).await.err(),
            RedisStore::open(&url, Clock::System).await.err(),
        ];
        for (verb, error) in errors.into_iter().enumerate() {
            let error = error.unwrap_or_else(|| panic!("verb {verb} is refused: {format}"));
            assert_eq!(error.kind(), kind, "verb {verb}: {error}");
            assert!(error.to_string().contains(format), "verb {verb}: {error}");
            assert!(error.hint().is_some());
        }
        assert!(before == keys_of(&server, &url), "{format}: something was changed");
    }
}

#[tokio::test]
async fn a_worker_whose_store_is_upgraded_under_it_stops() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = open(&url).await;
    let client = Client::new(store.clone());
    client.push(jobs(&client, 2)).await.unwrap();
    let (ran, mut runs) = tokio::sync::mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let handle = move |_: JobRecord, _: Ctx| {
        let (ran, opened) = (ran.clone(), Arc::clone(&opened));
        async move {
            let _ = ran.send(());
            let _ = opened.acquire().await;
            Ok::<_, std::io::Error>(())
        }
    };
    let worker = Worker::new(&client).queue("mail").slots(1).handle_raw(handle);
    let worker = tokio::spawn(worker.run_until(CancellationToken::new()));
    runs.recv().await.expect("it works");
    // While the first job runs, so that the worker's next call meets the newer format, however slow this machine is.
    edit_turn(&server, &url, NEWER);
    gate.add_permits(2);
    let ended = tokio::time::timeout(BLOCKED_MAX, worker).await.expect("it stops").unwrap();
    let error = ended.expect_err("and says why");
    assert_eq!(error.kind(), ErrorKind::Outdated, "{error}");
    assert!(runs.try_recv().is_err(), "the second job waits for the newer process");
}

#[tokio::test]
async fn a_queue_whose_settings_can_not_be_read_is_paused() {
    let server = Server::start(&[]);
    let url = server.url();
    let (store, other) = (open(&url).await, open(&url).await);
    let client = Client::new(store.clone());
    client.push(jobs(&client, 1)).await.unwrap();
    let bulk = NewJob::new(client.make_id(), "k", "bulk", Payload::json("1"));
    client.push(vec![bulk]).await.unwrap();
    let edit = |script: &str| server.say(&["EVAL", script, "1", &key(&url, "i")]);
    edit(
        "local q = '\\0\\0\\1' redis.call('HSET', KEYS[1], 'was', redis.call('HGET', KEYS[1], q), q, 'torn')",
    );
    let both = |number| {
        let want = |queue: &str| QueueRequest { queue: queue.into(), share: 1, at_most: 1 };
        Reserve { queues: vec![want("mail"), want("bulk")], ..reserve(number, 2) }
    };
    let queues: Vec<_> =
        store.reserve(&both(1)).await.unwrap().jobs.iter().map(|job| job.job.queue.clone()).collect();
    assert_eq!(queues, ["bulk"], "one queue does not stop the others");
    assert_eq!(store.count(None).await.unwrap().waiting, 1);
    let refused = other.enqueue(CallId { instance: 5, number: 1 }, &jobs(&client, 1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    edit("local q = '\\0\\0\\1' redis.call('HSET', KEYS[1], q, redis.call('HGET', KEYS[1], 'was'))");
    assert_eq!(store.reserve(&both(2)).await.unwrap().jobs.len(), 1);
}

/// Lets each job with a header look as if a newer version had written it, or look as before again.
fn edit_options(server: &Server, url: &str, from: &str, to: &str) {
    let script = "local all = redis.call('HGETALL', KEYS[1]) for i = 1, #all, 2 do
        local rec = string.gsub(all[i + 1], ARGV[1], ARGV[2]) redis.call('HSET', KEYS[1], all[i], rec) end";
    server.say(&["EVAL", script, "1", &key(url, "j"), from, to]);
}

/// Two jobs of a group, if any. The first one has a header, of which a newer version makes an option that is not known here.
fn newer_and_good(client: &Client, group: Option<&str>) -> Vec<NewJob> {
    let group = group.map(str::to_owned);
    let mut both: Vec<_> =
        jobs(client, 2).into_iter().map(|job| NewJob { group: group.clone(), ..job }).collect();
    both[0].headers.insert("a".to_owned(), "b".to_owned());
    both
}

/// A take acks what it gives, so that nobody would run such a job any more: it is held, as by a reserve.
#[tokio::test]
async fn a_take_holds_a_job_with_an_unknown_option() {
    const HEADERS: (&str, &str) = ("\"headers\":{\"a\":\"b\"}", "\"brand_new\":\"abcde\"");
    const UNIQUE: (&str, &str) = ("\"unique\":", "\"newest\":");
    let server = Server::start(&[]);
    for ((known, unknown), group) in
        [(HEADERS, None), (HEADERS, Some("g".to_owned())), (UNIQUE, Some("g".to_owned()))]
    {
        let url = server.url();
        let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
        let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
        let client = Client::new(open(&url).await);
        let mut both = newer_and_good(&client, group.as_deref());
        for job in &mut both {
            job.tags = vec!["known".to_owned()];
        }
        both[0].unique = Some(punctual::Unique::key("k"));
        let (newer, good) = (both[0].id, both[1].id);
        store.enqueue(CallId { instance: 7, number: 1 }, &both).await.unwrap();
        edit_options(&server, &url, known, unknown);
        let take = Take { queue: "mail".into(), n: 1, older_than: Duration::ZERO };
        let ids = |jobs: Vec<JobRecord>| jobs.iter().map(|job| job.id).collect::<Vec<_>>();
        assert_eq!(ids(store.take(&take).await.unwrap()), [good], "only what this version knows is taken");
        let kept = store.get(newer).await.unwrap().unwrap();
        assert_eq!(
            (kept.state, kept.reason, kept.attempt, kept.expired_leases),
            (State::Waiting, None, 1, 0)
        );
        assert_eq!(store.audit(Audit::default()).await.unwrap().findings, []);
        edit_options(&server, &url, unknown, known);
        clock.advance(Duration::from_mins(1));
        assert_eq!(ids(store.take(&take).await.unwrap()), [newer]);
    }
}

/// As on SQLite: what a newer version wrote waits for a worker of that version, and nothing is counted against it.
#[tokio::test]
async fn a_job_with_an_unknown_option_is_held_and_blocks_nobody() {
    const KNOWN: &str = "\"headers\":{\"a\":\"b\"}";
    const UNKNOWN: &str = "\"brand_new\":\"abcde\"";
    let server = Server::start(&[]);
    for group in [None, Some("g".to_owned())] {
        let url = server.url();
        let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
        let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
        let client = Client::new(open(&url).await);
        let both = newer_and_good(&client, group.as_deref());
        let (newer, good) = (both[0].id, both[1].id);
        store.enqueue(CallId { instance: 7, number: 1 }, &both).await.unwrap();
        edit_options(&server, &url, KNOWN, UNKNOWN);
        let ids = |jobs: Vec<Reserved>| jobs.iter().map(|job| job.job.id).collect::<Vec<_>>();
        assert_eq!(ids(store.reserve(&reserve(1, 10)).await.unwrap().jobs), [good]);
        let kept = store.get(newer).await.unwrap().unwrap();
        assert_eq!(
            (kept.state, kept.reason, kept.attempt, kept.expired_leases),
            (State::Waiting, None, 1, 0)
        );
        assert_eq!(store.audit(Audit::default()).await.unwrap().findings, []);
        // What can read it runs it, a minute later at most.
        edit_options(&server, &url, UNKNOWN, KNOWN);
        clock.advance(Duration::from_mins(1));
        let run = store.reserve(&reserve(2, 10)).await.unwrap().jobs.remove(0);
        assert_eq!((run.job.id, run.job.attempt, run.job.headers.len()), (newer, 1, 1));
    }
}

/// Windows and locks of formats before 5 have no length: they end when they would have.
#[tokio::test]
async fn windows_and_locks_of_the_format_before_end_in_time() {
    const MINUTE: Duration = Duration::from_mins(1);
    let (server, begun) = (Server::start(&[]), Timestamp::from_ms(1_800_000_000_000).unwrap());
    let (url, clock) = (server.url(), ManualClock::new(begun));
    let store = Arc::new(RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap());
    let client = Client::new(store.clone());
    let job = || NewJob { unique: Some(Unique::key("k").window(MINUTE)), ..jobs(&client, 1).remove(0) };
    let acquire = async |owner| {
        let lock = LockOp::Acquire { name: "l".to_owned(), owner, lease: MINUTE };
        match store.tool(&ToolOp::Lock(lock)).await.unwrap() {
            ToolReply::Lock(reply) => matches!(reply, LockReply::Yours(_)),
            other => panic!("{other:?}"),
        }
    };
    assert!(client.push(vec![job()]).await.unwrap()[0].is_new() && acquire(1).await);
    let cut = "for at, length in ipairs({22, 30}) do
        for _, field in ipairs(redis.call('HKEYS', KEYS[at])) do
            redis.call('HSET', KEYS[at], field, string.sub(redis.call('HGET', KEYS[at], field), 1, length))
        end
    end";
    server.say(&["EVAL", cut, "2", &key(&url, "u"), &key(&url, "lk")]);
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
    for (passed, is_over) in [(Duration::ZERO, false), (Duration::from_millis(59_999), false), (MINUTE, true)]
    {
        clock.set(begun.after(passed));
        let is_new = client.push(vec![job()]).await.unwrap()[0].is_new();
        assert_eq!((is_new, acquire(2).await), (is_over, is_over), "{passed:?}");
    }
}
