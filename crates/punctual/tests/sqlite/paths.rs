//! One file, two paths to it. Either both lead to one store, or the second one is refused; no job that was answered is
//! lost.

#![expect(
    clippy::unnecessary_wraps,
    reason = "the ways are one table, and some are not there on each machine"
)]

use std::{
    os::unix::fs::symlink,
    path::Component,
    process::{Command, Stdio},
};

use super::*;

/// A way to a file by another path: it makes the path, or says that this machine cannot.
type Way = fn(&Path, &Path) -> Option<PathBuf>;

fn by_symlink(file: &Path, folder: &Path) -> Option<PathBuf> {
    symlink(file, folder.join("link.db")).unwrap();
    Some(folder.join("link.db"))
}

fn by_symlinked_folder(file: &Path, folder: &Path) -> Option<PathBuf> {
    symlink(file.parent().unwrap(), folder.join("link")).unwrap();
    Some(folder.join("link/jobs.db"))
}

fn by_dots(file: &Path, folder: &Path) -> Option<PathBuf> {
    let up = folder.components().filter(|part| matches!(part, Component::Normal(_))).map(|_| "..");
    Some(folder.join(up.collect::<PathBuf>()).join(file.strip_prefix("/").unwrap()))
}

fn relative(file: &Path, _: &Path) -> Option<PathBuf> {
    let here = std::env::current_dir().unwrap();
    let up = here.components().filter(|part| matches!(part, Component::Normal(_))).map(|_| "..");
    Some(up.collect::<PathBuf>().join(file.strip_prefix("/").unwrap()))
}

/// S1: each of these is the same store, so nothing that was answered through one is missed through the other.
#[tokio::test]
async fn paths_to_one_file_lead_to_one_store() {
    let ways: [(&str, Way); 4] = [
        ("a symbolic link", by_symlink),
        ("a link to its folder", by_symlinked_folder),
        ("dots", by_dots),
        ("a relative path", relative),
    ];
    for (what, way) in ways {
        let (folder, other) = (Folder::new(), Folder::new());
        drop(folder.open());
        let path = way(&folder.path(), other.0.path()).unwrap();
        let open = |path: &Path| SqliteStore::open(path, SqliteOptions::default()).unwrap();
        let mut jobs = Vec::new();
        for round in 0..6 {
            let (first, second) = (open(&folder.path()), open(&path));
            for store in [&first, &second] {
                let job = new_job(round);
                assert!(enqueue(store, &job).await.is_new(), "{what}");
                jobs.push(job.id);
            }
            // Whoever is the last to close copies the log.
            if round % 2 == 0 { drop(first) } else { drop(second) }
        }
        for id in jobs {
            assert_eq!(state(&open(&path), id).await, Some(State::Waiting), "{what}");
        }
        assert_eq!(findings(&folder.open(), false).await, [], "{what}");
    }
}

fn assert_has_two_names(error: &punctual::Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("2 names (hard links)") && error.hint().is_some(), "{error}");
}

/// S1: a hard link is a path with a log of its own, which would overwrite jobs of the other one.
#[tokio::test]
async fn a_file_with_two_names_is_not_written() {
    let (folder, other) = (Folder::new(), Folder::new());
    let link = other.path();
    let store = folder.open();
    let job = new_job(1);
    assert!(enqueue(&store, &job).await.is_new());
    std::fs::hard_link(folder.path(), &link).unwrap();

    assert_has_two_names(&store.enqueue(call(7), &[new_job(7)]).await.unwrap_err());
    assert_has_two_names(&store.reserve(&want(1)).await.unwrap_err());
    assert_has_two_names(&store.now().await.unwrap_err());
    for path in [&folder.path(), &link] {
        assert_has_two_names(&SqliteStore::open(path, SqliteOptions::default()).unwrap_err());
    }
    // Nothing was made beside the other name.
    assert_eq!(std::fs::read_dir(other.0.path()).unwrap().count(), 1);
    assert_eq!(state(&store, job.id).await, Some(State::Waiting));
    let looks =
        SqliteStore::open(folder.path(), SqliteOptions { read_only: true, ..SqliteOptions::default() });
    let checks = looks.unwrap().doctor().await.unwrap();
    let file = checks.iter().find(|check| check.name == "file").unwrap();
    assert_eq!((file.level, file.text.contains("2 names")), (CheckLevel::Fail, true), "{}", file.text);

    std::fs::remove_file(&link).unwrap();
    assert!(enqueue(&store, &new_job(8)).await.is_new(), "it goes on with one name");
    assert!(enqueue(&folder.open(), &new_job(9)).await.is_new());
}

/// Does nothing, unless a test below started it with a file: then it says whether the file can be opened.
#[test]
fn child_that_opens() {
    let Ok(file) = std::env::var("PUNCTUAL_TEST_MOUNTED") else { return };
    let opened = SqliteStore::open(file, SqliteOptions::default());
    let said = opened.map_or_else(|error| format!("{:?}: {error}", error.kind()), |_| "open".to_owned());
    println!("\nSAID {said}");
}

/// Mounts `from` at `to` for a process that opens `file`; returns what that says, or `None` without mount namespaces.
fn opened_by_a_mount(from: &Path, to: &Path, file: &Path) -> Option<String> {
    let script = "mount --bind \"$0\" \"$1\" && echo SAID mounted && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).args([from, to]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "paths::child_that_opens", "--nocapture"]).env("PUNCTUAL_TEST_MOUNTED", file);
    let out = command.stdin(Stdio::null()).output().unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    let mut said = out.lines().filter_map(|line| line.strip_prefix("SAID "));
    if said.next().is_none() {
        println!("SKIPPED: no mount namespaces for this user");
        return None;
    }
    Some(said.next_back().expect("the child says it").to_owned())
}

/// As `docker run -v ./jobs.db:/app/jobs.db` does.
#[tokio::test]
async fn a_file_that_is_mounted_alone_is_refused_and_its_folder_is_not() {
    let (folder, other) = (Folder::new(), Folder::new());
    let store = folder.open();
    std::fs::write(other.path(), "").unwrap();
    let Some(said) = opened_by_a_mount(&folder.path(), &other.path(), &other.path()) else { return };
    assert!(said.starts_with("Unsupported: ") && said.contains("is mounted as a single file"), "{said}");
    assert_eq!(std::fs::read_dir(other.0.path()).unwrap().count(), 1, "nothing was made beside it");
    let said = opened_by_a_mount(folder.0.path(), other.0.path(), &other.path());
    assert_eq!(said.as_deref(), Some("open"));
    // Elsewhere mounted or not, this path is the one beside which the log is.
    assert!(enqueue(&store, &new_job(1)).await.is_new());
}
