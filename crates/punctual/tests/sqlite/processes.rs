//! A file shared by processes that share nothing else: not the folder for temporary files, nor the user, nor the mounts.
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
};

use super::*;

/// Does nothing, unless it was started by a test below with a file: then it enqueues a job for each line that it reads.
#[test]
fn child_that_enqueues() {
    let Ok(file) = std::env::var("PUNCTUAL_TEST_FILE") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(file, SqliteOptions::default()).unwrap();
        say("ready");
        for (n, line) in std::io::stdin().lines().enumerate() {
            line.unwrap();
            assert!(enqueue(&store, &new_job(n as u64)).await.is_new());
        }
    });
}

/// Does nothing, unless it was started by the test below with a file: then it opens it.
#[test]
fn child_that_opens() {
    let Ok(file) = std::env::var("PUNCTUAL_TEST_OPENED") else { return };
    match SqliteStore::open(file, SqliteOptions::default()) {
        Ok(_) => say("ready"),
        Err(error) => say(&format!("failed {error}: {}", error.hint().unwrap_or_default())),
    }
}

/// SQLite says only that it could not open a file.
#[test]
fn a_process_without_descriptors_is_told_so() {
    let folder = Folder::new();
    drop(folder.open());
    let (mut failed, mut opened) = (0, 0);
    for limit in 6..40 {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")]);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::child_that_opens", "--nocapture"]);
        command.env("PUNCTUAL_TEST_OPENED", folder.path());
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        match said.lines().find_map(|line| line.strip_prefix("SAID ")) {
            Some("ready") => opened += 1,
            Some(error) => {
                assert!(error.contains("no file descriptors are left here"), "limit {limit}: {error}");
                failed += 1;
            }
            // The program could not even be loaded.
            None => assert!(limit < 12, "limit {limit}: {said}"),
        }
    }
    assert!(0 < failed && 0 < opened, "{failed} failed, {opened} opened");
}

/// A whole line at once, for the parent.
pub(super) fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\nSAID {what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// The child, and its output, which must stay open as long as it lives.
struct Producer(
    Child,
    #[expect(dead_code, reason = "it is only kept open")]
    std::io::Lines<BufReader<std::process::ChildStdout>>,
);

impl Producer {
    /// Starts this very program through another one, with the arguments `as_what`; `None`: the machine doesn't allow that.
    fn start(as_what: &[&str], file: &Path, set: impl FnOnce(&mut Command)) -> Option<Self> {
        let own = std::env::current_exe().unwrap();
        let mut words = as_what.iter().map(std::ffi::OsStr::new).chain([own.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(["--exact", "processes::child_that_enqueues", "--nocapture"]);
        command.env("PUNCTUAL_TEST_FILE", file).stdin(Stdio::piped()).stdout(Stdio::piped());
        set(&mut command);
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_ready = said.by_ref().map_while(Result::ok).any(|line| line == "SAID ready");
        is_ready.then_some(Self(child, said))
    }

    fn enqueue(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// How often the producer must ring, and in how many rounds.
const RINGS: u32 = 3;
const ROUNDS_MAX: u32 = 12;
/// How many notifications of earlier jobs can be late.
const LATE_MAX: u32 = ROUNDS_MAX;

/// Waits for jobs of the producer, and asserts that it rings. A wait that finds a job by itself looks into the file first. It may do so
/// between a commit and its notification: then the round shows nothing. Where nobody rings, every job is found that way.
async fn assert_it_rings(folder: &Folder, store: &SqliteStore, producer: &mut Producer) {
    let (mut rang, mut again) = (0, None);
    for round in 0..ROUNDS_MAX {
        let store = again.as_ref().unwrap_or(store);
        let queues = ["mail".to_owned()];
        let mut wait = Box::pin(store.wait(&queues, Duration::from_secs(30)));
        let before = store.operations();
        // The version, and what is next: then it listens.
        while store.operations() < before + 2 {
            tokio::select! { biased; _ = &mut wait => panic!("nothing is due"), () = tokio::task::yield_now() => {} }
        }
        producer.enqueue();
        wait.await.unwrap();
        // One look at the version is the wait's own, when it lasts.
        let looked = store.operations() - before - 2;
        let take = Take { queue: "mail".to_owned(), n: 1, older_than: Duration::ZERO };
        let mut taken = store.take(&take).await.unwrap().len();
        if taken == 0 {
            println!("round {round}: told of the job before, which a look had found first");
            for _ in 0..LATE_MAX {
                store.wait(&queues, Duration::from_secs(30)).await.unwrap();
                taken += store.take(&take).await.unwrap().len();
                if 0 < taken {
                    break;
                }
            }
            assert_eq!(taken, 1, "round {round}");
            continue;
        }
        assert_eq!(taken, 1, "round {round}");
        if looked <= 1 {
            rang += 1;
        } else {
            println!("round {round}: found by {looked} looks into the file");
            // A store that found a job so may look more often from then on.
            again = Some(folder.open());
        }
        if rang == RINGS {
            return;
        }
    }
    panic!("of {ROUNDS_MAX} jobs, {rang} were told of; the others were found by looks into the file");
}

#[tokio::test]
async fn a_process_with_another_temporary_folder_rings() {
    let folder = Folder::new();
    let other = tempfile::tempdir().unwrap();
    let store = folder.open();
    let mut producer = Producer::start(&["env"], &folder.path(), |command| {
        command.env("TMPDIR", other.path());
    });
    assert_it_rings(&folder, &store, producer.as_mut().unwrap()).await;
}

/// As containers have one volume at two places.
#[tokio::test]
async fn a_process_with_other_mounts_rings() {
    let folder = Folder::new();
    let other = tempfile::tempdir().unwrap();
    let store = folder.open();
    let script = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";
    let (from, to) = (folder.0.path().to_str().unwrap(), other.path().to_str().unwrap());
    let unshare = ["unshare", "-m", "sh", "-c", script, from, to];
    let Some(mut producer) = Producer::start(&unshare, &other.path().join("jobs.db"), |_| ()) else {
        println!("SKIPPED: no mount namespaces for this user");
        return;
    };
    assert_it_rings(&folder, &store, &mut producer).await;
}

/// Root and the user whose file it is, whoever of them comes first.
#[tokio::test]
async fn a_process_of_another_user_rings() {
    let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    for is_first in [true, false] {
        let folder = Folder::new();
        std::fs::set_permissions(folder.0.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        // The file is nobody's in any case.
        let made = Producer::start(&setpriv, &folder.path(), |_| ());
        let Some(made) = made else {
            println!("SKIPPED: this user can't become another one");
            return;
        };
        if !is_first {
            drop(made);
            drop(std::fs::remove_file(folder.0.path().join("jobs.db-lock")));
        }
        let store = folder.open();
        let mut producer =
            Producer::start(&setpriv, &folder.path(), |_| ()).expect("it may use its own file");
        assert_it_rings(&folder, &store, &mut producer).await;
    }
}

/// The file is root's, and shared with a group.
#[tokio::test]
async fn a_process_of_the_group_rings() {
    let setpriv = ["setpriv", "--reuid=65533", "--regid=65534", "--clear-groups"];
    let folder = Folder::new();
    drop(folder.open());
    for (path, mode) in [(folder.0.path().to_owned(), 0o2770), (folder.path(), 0o660)] {
        if std::os::unix::fs::chown(&path, None, Some(65534)).is_err() {
            println!("SKIPPED: this user can't share a file with another group");
            return;
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let store = folder.open();
    let mut producer = Producer::start(&setpriv, &folder.path(), |_| ()).expect("it may write the file");
    assert_it_rings(&folder, &store, &mut producer).await;
}

/// Whoever cleans up takes the meeting place away; it comes back, and notifications arrive there.
#[tokio::test]
async fn a_meeting_place_that_was_removed_comes_back() {
    let folder = Folder::new();
    let store = folder.open();
    let place = folder.0.path().join("jobs.db-bell");
    let queues = ["mail".to_owned()];
    let wait = store.wait(&queues, Duration::from_secs(30));
    tokio::pin!(wait);
    let begin = Instant::now();
    let sockets = || std::fs::read_dir(&place).into_iter().flatten().flatten().count();
    for is_removed in [false, true] {
        if is_removed {
            std::fs::remove_dir_all(&place).unwrap();
        }
        // A socket, and the sign of the wait.
        while sockets() < 2 {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "there is no meeting place (removed: {is_removed})"
            );
            tokio::select! { biased; _ = &mut wait => panic!("nothing is due"), () = tokio::time::sleep(Duration::from_millis(5)) => {} }
        }
    }
    let mut producer = Producer::start(&["env"], &folder.path(), |_| ()).unwrap();
    producer.enqueue();
    wait.await.unwrap();
    let take = Take { queue: "mail".to_owned(), n: 1, older_than: Duration::ZERO };
    assert_eq!(store.take(&take).await.unwrap().len(), 1);
    assert_it_rings(&folder, &store, &mut producer).await;
}

#[tokio::test]
async fn the_doctor_asks_all_who_listen() {
    let folder = Folder::new();
    let (store, others) = (folder.open(), [folder.open(), folder.open()]);
    let queues = ["mail".to_owned()];
    let mut waits: Vec<_> = others.iter().map(|other| other.wait(&queues, Duration::from_secs(30))).collect();
    for (wait, other) in waits.iter_mut().zip(&others) {
        while other.operations() < 2 {
            tokio::select! { biased; _ = &mut *wait => panic!("nothing is due"), () = tokio::task::yield_now() => {} }
        }
    }
    let checks = store.doctor().await.unwrap();
    let notification = checks.iter().find(|check| check.name == "bell").unwrap();
    assert_eq!(
        (notification.level, &*notification.text),
        (CheckLevel::Ok, "other processes that listen: 2; all of them answered")
    );
}

/// One process wakes for a time, and a spare, however many wait: two are told the time, and two show that they wake for it.
#[tokio::test]
async fn two_wake_for_a_time_however_many_wait() {
    let folder = Folder::new();
    let stores: Vec<SqliteStore> = (0..8).map(|_| folder.open()).collect();
    // Sooner than any of the waits ends, and later than the last of them begins.
    let job = NewJob { run_at: When::In(Duration::from_secs(50)), ..new_job(1) };
    let Enqueued::Inserted { run_at, .. } = enqueue(&stores[0], &job).await else { panic!("it is new") };
    // Signs of those that wake for it: their names say when.
    let armed = || {
        let signs = std::fs::read_dir(folder.0.path().join("jobs.db-bell")).into_iter().flatten().flatten();
        let times = signs.filter_map(|sign| {
            let name = sign.file_name().into_string().unwrap();
            name.split('-').nth(2).map(|at| u64::from_str_radix(at, 16).unwrap())
        });
        times.filter(|at| *at <= run_at.as_ms()).count()
    };
    let (mut waits, mut told) = (Vec::new(), 0);
    for (n, store) in stores.iter().enumerate() {
        let batch = store.reserve(&Reserve { call: call(1), ..want(1) }).await.unwrap();
        told += usize::from(batch.next_due.is_some());
        let before = store.operations();
        let mut wait = Box::pin(async move {
            store.wait(&["mail".to_owned()], Duration::from_mins(1)).await.unwrap();
        });
        while store.operations() < before + 2 || armed() < (n + 1).min(2) {
            tokio::select! { biased; () = &mut wait => panic!("nothing is due"), () = tokio::task::yield_now() => {} }
        }
        waits.push(wait);
    }
    // All of them go to sleep.
    let woken =
        tokio::time::timeout(Duration::from_millis(200), futures_util::future::select_all(waits.iter_mut()));
    assert!(woken.await.is_err(), "nothing is due");
    assert_eq!((told, armed()), (2, 2));
}

/// S9: the end of a lease that was handed out while this one waited.
#[tokio::test]
async fn an_idle_handle_is_there_when_another_ones_lease_ends() {
    let folder = Folder::new();
    let (idle, dies) = (folder.open(), folder.open());
    let queues = ["mail".to_owned()];
    let wait = idle.wait(&queues, Duration::from_mins(1));
    tokio::pin!(wait);
    // So long that it would trust to be notified for a while.
    let idling = Duration::from_millis(3_200);
    tokio::select! { biased; _ = &mut wait => panic!("nothing is due"), () = tokio::time::sleep(idling) => {} }
    // A job of which nobody is told goes to somebody who dies of it.
    let mut app = folder.connect();
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let (_, notification) = dies.enqueue_in(&tx, &[new_job(1)]).unwrap();
    tx.commit().unwrap();
    drop(notification);
    let lease = Reserve { lease: Some(Duration::from_secs(1)), ..want(1) };
    assert_eq!(dies.reserve(&lease).await.unwrap().jobs.len(), 1);
    let ended = tokio::time::timeout(Duration::from_millis(3_300), &mut wait).await;
    assert!(ended.is_ok(), "the idle handle slept on, 2.3 s past the end of the lease");
}
