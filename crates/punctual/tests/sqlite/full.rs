//! A disk that is full: jobs can still end, and then there is room again. A small file system in memory plays the disk.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use super::*;

/// What the small disk holds, in MiB.
const DISK_MIB: usize = 12;

/// Does nothing, unless the test below started it in the folder of a full disk.
#[test]
fn child_on_a_small_disk() {
    let Ok(folder) = std::env::var("PUNCTUAL_TEST_DISK") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(fill_and_drain(Path::new(&folder)));
    println!("\nSAID drained");
}

/// Writes a file until the disk is full.
fn fill(folder: &Path) -> PathBuf {
    let path = folder.join("fill");
    let mut file = std::fs::File::create(&path).unwrap();
    for size in [1 << 20, 4 << 10, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
    path
}

fn is_full(error: &punctual::Error) -> bool {
    error.kind() == ErrorKind::StoreFull
}

/// What the doctor says of the disk.
async fn disk_of(store: &SqliteStore) -> Check {
    let checks = store.doctor().await.unwrap();
    checks.into_iter().find(|check| check.name == "disk").unwrap()
}

async fn fill_and_drain(folder: &Path) {
    let path = folder.join("jobs.db");
    let open = || SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let store = open();
    let large = |n| NewJob { payload: Payload::json(format!("\"{}\"", "x".repeat(20_000))), ..new_job(n) };
    for n in 0..100 {
        assert!(enqueue(&store, &large(n)).await.is_new());
    }
    let filled = fill(folder);
    // There may be room in the log for some.
    let mut jobs = 100;
    let error = loop {
        match store.enqueue(call(1), &[large(jobs)]).await {
            Ok(_) => jobs += 1,
            Err(error) => break error,
        }
    };
    assert!(is_full(&error), "{error}");
    let disk = disk_of(&store).await;
    assert!(disk.level == CheckLevel::Fail && disk.text.ends_with("disk is full"), "{disk:?}");

    // A worker's calls, and those of an operator.
    let batch = store.reserve(&want(4)).await.unwrap();
    assert_eq!(store.extend(&[batch.jobs[0].lease.into()]).await.unwrap().len(), 1);
    for job in &batch.jobs {
        let done = [Settlement { lease: job.lease, verdict: Verdict::Ack }];
        store.settle(&done, Some(&Reserve { call: call(2), ..want(1) })).await.unwrap();
    }
    let keep = Keep { age_ms: 0, count: 0, bytes: 0 };
    let settings = QueueSettings { done: keep, ..QueueSettings::default() };
    store.queue("mail", &QueueOp::Set(Box::new(settings))).await.unwrap();
    assert!(is_full(&store.enqueue(call(3), &[large(1_000)]).await.unwrap_err()), "it takes no jobs");
    drop(store);

    // Another process, one call at a time, to the last job.
    let store = open();
    let take = Take { queue: "mail".to_owned(), n: 1, older_than: Duration::ZERO };
    let mut taken = 0;
    while !store.take(&take).await.unwrap().is_empty() {
        taken += 1;
    }
    assert_eq!(taken, jobs - 8);
    // The file has room inside now, and later the disk.
    std::fs::remove_file(filled).unwrap();
    assert!(enqueue(&store, &large(2_000)).await.is_new());
    assert_eq!(disk_of(&store).await.level, CheckLevel::Ok);
    assert!(folder.join("jobs.db-ballast").metadata().unwrap().len() >= 1 << 20, "it is made again");
    assert_eq!(findings(&store, false).await, []);
}

/// S17: what is stored still runs, or is taken, and the settings of queues can be changed.
#[test]
fn a_full_disk_refuses_new_jobs_and_lets_all_others_end() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        format!("mount -t tmpfs -o size={DISK_MIB}m tmpfs \"$0\" && echo SAID mounted && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).arg(folder.path()).arg(std::env::current_exe().unwrap());
    command
        .args(["--exact", "full::child_on_a_small_disk", "--nocapture"])
        .env("PUNCTUAL_TEST_DISK", folder.path());
    let out = command.stdin(Stdio::null()).output().unwrap();
    let (said, why) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if !said.lines().any(|line| line == "SAID mounted") {
        println!("SKIPPED: no mount namespaces for this user");
        return;
    }
    assert!(said.lines().any(|line| line == "SAID drained"), "{said}\n{why}");
}
