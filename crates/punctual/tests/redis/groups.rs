//! Jobs of many groups: what one script does for them is bounded, counted by the server. A call takes several scripts, and other
//! callers run in between.

use std::collections::BTreeSet;

use punctual::{
    Client, Ctx, JobId, JobRecord, NewJob, Payload, Timestamp, When, Worker,
    limits::GROUP_SERVICES_MAX,
    store::{CallId, Enqueued, Reserved, Settled, Settlement, Store, Take, Verdict, clock::ManualClock},
};
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;

use super::{
    console::{Console, calls},
    proxy::{Proxy, Weather, Whom},
    server::Server,
    *,
};

const JOBS: usize = 1_000;
/// The most commands of one script, in the mean of a call: about 10 ms of a server on a slow machine.
const COMMANDS_PER_SCRIPT: u64 = 1_280;
/// How often a call is repeated whose answers are lost.
const REPETITIONS_MAX: usize = 200;

fn grouped(client: &Client) -> Vec<NewJob> {
    let job = |n| NewJob {
        group: Some(format!("tenant {n}")),
        ..NewJob::new(client.make_id(), "email.send", "mail", Payload::json("1"))
    };
    (0..JOBS).map(job).collect()
}

/// Almost the most bytes that a call may have.
fn large(client: &Client) -> Vec<NewJob> {
    let payload = Payload::json(vec![b'1'; 1_000]);
    grouped(client).into_iter().map(|job| NewJob { payload: payload.clone(), ..job }).collect()
}

/// From now on the server has room for some of the large jobs, which need 2.0 to 2.8 MB, and not for all. The store has enqueued before:
/// its scripts need memory, too.
fn limit_memory(server: &Server) {
    let used = server.say(&["INFO", "memory"]);
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let most = used.trim().parse::<u64>().unwrap() + 1_200_000;
    server.say(&["CONFIG", "SET", "maxmemory", &most.to_string()]);
}

fn ends(jobs: &[Reserved], verdict: &Verdict) -> Vec<Settlement> {
    jobs.iter().map(|job| Settlement { lease: job.lease, verdict: verdict.clone() }).collect()
}

/// Scripts of a call, and the commands that they ran in the mean.
fn scripts(console: &mut Console, what: &str) -> (u64, u64) {
    let mut seen = calls(&console.say(&["INFO", "commandstats"]).unwrap());
    let scripts = seen.remove("evalsha").unwrap();
    let commands = seen.values().sum::<u64>() / scripts;
    println!("{what}: {scripts} scripts, {commands} commands in each");
    console.say(&["CONFIG", "RESETSTAT"]).unwrap();
    (scripts, commands)
}

/// Reserves until nothing is left: what each call answered.
async fn reserve_all(store: &RedisStore, from: u64, n: usize) -> Vec<Vec<Reserved>> {
    let mut all = Vec::new();
    for number in from.. {
        let batch = store.reserve(&reserve(number, n)).await.unwrap();
        assert!(!batch.more || !batch.jobs.is_empty(), "it says that there is more, and gives nothing");
        let is_over = !batch.more;
        all.push(batch.jobs);
        if is_over {
            break;
        }
    }
    all
}

/// S13: whatever is done with a thousand jobs of as many groups holds the server up for a short time only, as often as it has to.
#[tokio::test]
async fn many_groups_cost_scripts_that_are_short() {
    let server = Server::start(&[]);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    let take = Take { queue: "mail".into(), n: JOBS, older_than: Duration::ZERO };
    // A script that the server does not know yet is called twice.
    client.push(jobs(&client, 1)).await.unwrap();
    store.take(&take).await.unwrap();
    store.reserve(&reserve(1, 1)).await.unwrap();
    let _ = store.settle(&[], None).await.unwrap();
    let mut console = Console::open(&server.socket()).unwrap();
    console.say(&["CONFIG", "RESETSTAT"]).unwrap();
    let mut costs = Vec::new();

    let answers = client.push(grouped(&client)).await.unwrap();
    assert!(answers.iter().all(Enqueued::is_new));
    costs.push(scripts(&mut console, "enqueue"));
    let runs = reserve_all(&store, 2, JOBS).await.concat();
    assert_eq!(runs.len(), JOBS);
    costs.push(scripts(&mut console, "reserve"));
    let retry = Verdict::Retry { at: When::Now, error: "not now".into() };
    let settled = store.settle(&ends(&runs, &retry), None).await.unwrap().0;
    assert!(settled.iter().all(|answer| matches!(answer, Settled::Settled(..))));
    costs.push(scripts(&mut console, "retry"));
    let runs = reserve_all(&store, 100, JOBS).await.concat();
    assert_eq!(runs.len(), JOBS);
    costs.push(scripts(&mut console, "reserve again"));
    client.push(grouped(&client)).await.unwrap();
    costs.push(scripts(&mut console, "enqueue more"));
    // What is reserved after it shares the last script with it.
    let (settled, batch) = store.settle(&ends(&runs, &Verdict::Ack), Some(&reserve(200, 50))).await.unwrap();
    assert!(settled.iter().all(|answer| matches!(answer, Settled::Settled(..))));
    assert!(batch.as_ref().unwrap().more);
    costs.push(scripts(&mut console, "ack and reserve"));
    let taken = store.take(&take).await.unwrap().len();
    assert_eq!(taken + batch.unwrap().jobs.len(), JOBS);
    costs.push(scripts(&mut console, "take"));
    assert!(costs.iter().all(|(_, commands)| *commands <= COMMANDS_PER_SCRIPT), "{costs:?}");
}

/// S16: a reserve of more jobs than groups get services in one script answers fewer, in the very order of reserves of fewer.
#[tokio::test]
async fn a_reserve_that_stops_early_is_one_of_fewer_jobs() {
    let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
    let mut all = Vec::new();
    for n in [JOBS, GROUP_SERVICES_MAX] {
        let store = RedisStore::open(&Server::shared().url(), Clock::Manual(clock.clone())).await.unwrap();
        for (round, size) in [(1, 300), (2, 150), (3, 500)] {
            let job = |n: usize| {
                let id = JobId::derived("mail", None, &format!("{round} {n}"));
                let mut job = NewJob::new(id, "k", "mail", Payload::json("1"));
                job.group = (!n.is_multiple_of(7)).then(|| format!("group {n}"));
                job
            };
            let made: Vec<NewJob> = (0..size).map(job).collect();
            store.enqueue(CallId { instance: 7, number: round }, &made).await.unwrap();
        }
        let calls = reserve_all(&store, 1, n).await;
        let ids: Vec<Vec<JobId>> =
            calls.iter().map(|jobs| jobs.iter().map(|job| job.job.id).collect()).collect();
        assert_eq!(ids.concat().len(), 950);
        all.push(ids);
    }
    let [many, few] = &all[..] else { unreachable!() };
    assert!(1 < many.len(), "one call gave all");
    assert_eq!(many.concat(), few.concat());
}

/// A worker asks again at once: jobs that wait for each other all start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_fills_all_slots_though_a_reserve_gives_fewer() {
    const SLOTS: usize = 3 * GROUP_SERVICES_MAX;
    let store = open(&Server::shared().url()).await;
    let client = Client::new(store.clone());
    let mut jobs = grouped(&client);
    jobs.truncate(SLOTS);
    client.push(jobs).await.unwrap();
    let all = Arc::new(Barrier::new(SLOTS + 1));
    let handle = {
        let all = Arc::clone(&all);
        move |_: JobRecord, _: Ctx| {
            let all = Arc::clone(&all);
            async move {
                all.wait().await;
                Ok::<_, std::io::Error>(())
            }
        }
    };
    let worker = Worker::new(&client).queue("mail").slots(SLOTS).handle_raw(handle);
    let stop = CancellationToken::new();
    let worker = tokio::spawn(worker.run_until(stop.clone()));
    tokio::time::timeout(BLOCKED_MAX, all.wait()).await.expect("all slots have a job");
    stop.cancel();
    assert_eq!(worker.await.unwrap().unwrap().done, SLOTS as u64);
}

/// S3, S2: repeated, such a call has its effect once; and it is refused before its first script where a later one would refuse it.
#[tokio::test]
async fn a_call_of_several_scripts_has_its_effect_once_or_not_at_all() {
    let url = Server::shared().url();
    let (store, other) = (open(&url).await, open(&url).await);
    let client = Client::new(store.clone());
    let mut jobs = grouped(&client);
    jobs[JOBS - 1].expires_at = Some(When::Now);
    assert!(store.enqueue(CallId { instance: 1, number: 1 }, &jobs).await.is_err());
    assert_eq!(store.count(None).await.unwrap().total(), 0);
    jobs[JOBS - 1].expires_at = None;
    let call = CallId { instance: 1, number: 2 };
    let first = store.enqueue(call, &jobs).await.unwrap();
    assert!(first.iter().all(Enqueued::is_new));
    // Another process knows nothing of the first try.
    for number in [2, 1] {
        let again = other.enqueue(CallId { number, ..call }, &jobs).await.unwrap();
        let says_again = |answer: &Enqueued| {
            if number == 2 { answer.is_new() } else { matches!(answer, Enqueued::Duplicate(_)) }
        };
        assert!(again.iter().all(says_again));
    }
    assert_eq!(store.count(None).await.unwrap().waiting, JOBS as u64);
}

/// S3: a number that was used for a small call, or is lower than the last one, puts no later script's jobs into the store.
#[tokio::test]
async fn an_old_number_inserts_nothing_in_any_script() {
    let store = open(&Server::shared().url()).await;
    let client = Client::new(store.clone());
    store.enqueue(CallId { instance: 1, number: 5 }, &jobs(&client, 1)).await.unwrap();
    for number in [5, 4] {
        let answers = store.enqueue(CallId { instance: 1, number }, &grouped(&client)).await.unwrap();
        assert!(!answers.iter().any(Enqueued::is_new), "number {number} is not the next one");
    }
    assert_eq!(store.count(None).await.unwrap().total(), 1);
    let next = store.enqueue(CallId { instance: 1, number: 6 }, &grouped(&client)).await.unwrap();
    assert!(next.iter().all(Enqueued::is_new));
}

/// S3: answers are lost in the midst of a call, which is repeated until it has one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_several_scripts_goes_on_where_its_answer_was_lost() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.socket()).await.unwrap();
    let (store, direct) = (
        open(&proxy.url("t")).await,
        open(&format!("redis+unix://{}?prefix=t", server.socket().display())).await,
    );
    let client = Client::new(direct.clone());
    let made = grouped(&client);
    let call = CallId { instance: 7, number: 1 };
    proxy.set(Weather::Lose(5), Whom::All);
    let mut answers = None;
    for _ in 0..REPETITIONS_MAX {
        match store.enqueue(call, &made).await {
            Ok(all) => {
                answers = Some(all);
                break;
            }
            Err(error) => assert!(error.is_repeatable(), "{error:?}"),
        }
    }
    let lost = proxy.lost();
    assert!(0 < lost, "no answer was lost");
    let answers = answers.expect("it goes on");
    assert!(made.iter().zip(&answers).all(|(job, answer)| answer.id() == Some(job.id)));
    assert_eq!(direct.count(None).await.unwrap().waiting, JOBS as u64);
    proxy.set(Weather::Fair, Whom::All);
    let runs = reserve_all(&direct, 1, JOBS).await.concat();
    let ids: BTreeSet<JobId> = runs.iter().map(|run| run.lease.job).collect();
    assert_eq!((runs.len(), ids.len()), (JOBS, JOBS));

    proxy.set(Weather::Lose(5), Whom::All);
    let acks = ends(&runs, &Verdict::Ack);
    let mut left: Vec<Settlement> = acks.clone();
    for _ in 0..REPETITIONS_MAX {
        match store.settle(&left, None).await {
            Ok(_) => left.clear(),
            Err(error) => assert!(error.is_repeatable(), "{error:?}"),
        }
        if left.is_empty() {
            break;
        }
    }
    assert!(lost < proxy.lost(), "no answer was lost");
    let counts = direct.count(None).await.unwrap();
    assert_eq!((left.len(), counts.done, counts.total()), (0, JOBS as u64, JOBS as u64));
}

/// A server that is full in the midst of a call: whoever repeats it is not told that nothing was done.
#[tokio::test]
async fn a_call_that_a_full_server_took_in_part_says_so_each_time() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    client.push(jobs(&client, 1)).await.unwrap();
    let made = large(&client);
    limit_memory(&server);
    let call = CallId { instance: 7, number: 1 };
    for round in 1..=3 {
        let error = store.enqueue(call, &made).await.unwrap_err();
        let waiting = store.count(None).await.unwrap().waiting;
        assert!((2..JOBS as u64).contains(&waiting), "{waiting} jobs are there");
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "try {round}: {error}");
    }
    server.say(&["CONFIG", "SET", "maxmemory", "0"]);
    store.enqueue(call, &made).await.unwrap();
    assert_eq!(store.count(None).await.unwrap().waiting, 1 + JOBS as u64);
}

/// S2: a call that was done in part is not refused by a repetition, for whom a job expires before it is due.
#[tokio::test]
async fn a_call_that_is_done_in_part_is_not_refused() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
    let store = RedisStore::open(&server.url(), Clock::Manual(clock.clone())).await.unwrap();
    let client = Client::new(open(&server.url()).await);
    let expires_at = Timestamp::from_ms(1_800_000_010_000).unwrap();
    let mut made = large(&client);
    for job in &mut made {
        job.expires_at = Some(When::At(expires_at));
    }
    let before = NewJob::new(client.make_id(), "email.send", "another queue", Payload::json("1"));
    store.enqueue(CallId { instance: 6, number: 1 }, &[before]).await.unwrap();
    limit_memory(&server);
    let call = CallId { instance: 7, number: 1 };
    let error = store.enqueue(call, &made).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}");
    server.say(&["CONFIG", "SET", "maxmemory", "0"]);
    clock.advance(Duration::from_secs(20));
    let answers = store.enqueue(call, &made).await.unwrap();
    assert_eq!(answers.len(), JOBS);
    assert_eq!(store.count(None).await.unwrap().total(), 1 + JOBS as u64);
    assert_eq!(store.reserve(&reserve(2, JOBS)).await.unwrap().jobs.len(), 0, "none starts after its expiry");
}

/// S13, S15: jobs that follow their groups into an earlier shard do so by short scripts, too.
#[tokio::test]
async fn groups_that_are_followed_into_an_old_shard_take_short_scripts() {
    /// Arguments that a script has besides three for each job.
    const OTHERS: usize = 64;
    let server = Server::start(&[]);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    client.push(grouped(&client)).await.unwrap();
    store.reshard(8).await.unwrap();
    let mut console = Console::open(&server.socket()).unwrap();
    console.say(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).unwrap();
    console.say(&["CONFIG", "SET", "slowlog-max-len", "10000"]).unwrap();
    client.push(grouped(&client)).await.unwrap();
    let log = console.say(&["SLOWLOG", "GET", "-1"]).unwrap();
    // The log has the first arguments of each script, and how many more there were.
    let more =
        |line: &str| line.strip_prefix("... (")?.strip_suffix(" more arguments)")?.parse::<usize>().ok();
    let most = log.lines().filter_map(more).max().expect("there are scripts with many arguments");
    println!("the longest script had {most} more arguments");
    assert!(most <= 3 * GROUP_SERVICES_MAX + OTHERS, "a script had {most} more arguments");
}

/// A group with a job, by the field of its row; and the names of the hashes of groups and of settings, and of the set of places.
async fn a_group(url: &str, store: &RedisStore) -> (redis::Connection, [Vec<u8>; 3], Vec<u8>) {
    store.enqueue(call(1), &[of_group("g", When::In(Duration::from_millis(500)))]).await.unwrap();
    let mut raw = redis::Client::open(url).unwrap().get_connection().unwrap();
    let prefix = url.rsplit_once("prefix=").unwrap().1;
    let keys = ["y", "i", "h"].map(|name| format!("{prefix}:{{0}}:{name}").into_bytes());
    let fields: Vec<Vec<u8>> = redis::cmd("HKEYS").arg(&keys[0]).query(&mut raw).unwrap();
    (raw, keys, fields[0].clone())
}

fn call(number: u64) -> CallId {
    CallId { instance: 1, number }
}

fn of_group(group: &str, run_at: When) -> NewJob {
    let id = punctual::job::IdMaker::default().make(1_800_000_000_000, 0, fastrand::u64(..));
    NewJob {
        group: Some(group.to_owned()),
        run_at,
        ..NewJob::new(id, "email.send", "mail", Payload::json("1"))
    }
}

/// A row that lost a byte is no row, and a later time is not that of the first job. After an audit, the group waits for its first job, not
/// for one that comes later.
#[tokio::test]
async fn a_group_whose_row_was_damaged_waits_for_its_first_job() {
    let server = Server::start(&[]);
    let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
    for damage in ["removed", "short", "late"] {
        let url = server.url();
        let store = Arc::new(RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap());
        let (mut raw, [groups, _, places], field) = a_group(&url, &store).await;
        let row: Vec<u8> = redis::cmd("HGET").arg(&groups).arg(&field).query(&mut raw).unwrap();
        let mut late = row.clone();
        late[3] += 1;
        let place = |row: &[u8]| [&field[..3], &row[..8], &field[3..]].concat();
        let mut spoil = redis::pipe();
        match damage {
            "removed" => spoil.cmd("HDEL").arg(&groups).arg(&field),
            "short" => spoil.cmd("HSET").arg(&groups).arg(&field).arg(&row[..25]),
            _ => {
                spoil.cmd("HSET").arg(&groups).arg(&field).arg(&late);
                spoil.cmd("ZREM").arg(&places).arg(place(&row));
                spoil.cmd("ZADD").arg(&places).arg(0).arg(place(&late))
            }
        };
        let changed: Vec<u64> = spoil.query(&mut raw).unwrap();
        assert!(damage != "late" || changed == [0, 1, 1], "{changed:?}");
        Client::new(store.clone()).audit(true, |_| ()).await.unwrap();
        store.enqueue(call(2), &[of_group("g", When::In(Duration::from_hours(24)))]).await.unwrap();
        clock.advance(Duration::from_secs(1));
        let batch = store.reserve(&reserve(1, 1)).await.unwrap();
        assert_eq!(batch.jobs.len(), 1, "its row was {damage}");
        let () = redis::cmd("FLUSHALL").query(&mut raw).unwrap();
    }
}

/// Tags of groups grow with each start, past the number that stands for never.
#[tokio::test]
async fn groups_are_served_however_many_jobs_they_started() {
    let server = Server::start(&[]);
    let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
    let url = server.url();
    let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
    let (mut raw, [_, settings, _], field) = a_group(&url, &store).await;
    let field = [&field[..3], b"w"].concat();
    let mut row: Vec<u8> = redis::cmd("HGET").arg(&settings).arg(&field).query(&mut raw).unwrap();
    row[39..46].copy_from_slice(&((1_u64 << 52) - 70_000).to_be_bytes()[1..]);
    let () = redis::cmd("HSET").arg(&settings).arg(&field).arg(row).query(&mut raw).unwrap();
    let jobs: Vec<_> = (0..6).map(|n| of_group(["g", "h"][n % 2], When::Now)).collect();
    store.enqueue(call(2), &jobs).await.unwrap();
    clock.advance(Duration::from_secs(1));
    for number in 1..=3 {
        let batch = store.reserve(&reserve(number, 2)).await.unwrap();
        assert_eq!(batch.jobs.len(), 2, "call {number}");
    }
}
