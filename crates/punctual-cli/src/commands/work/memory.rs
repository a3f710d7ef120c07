//! The resident memory of a child and of what it started, read from `/proc`. It reads a bounded number of files, and never in a task of
//! the worker.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::File,
    io::{self, Read as _},
    path::Path,
    sync::Arc,
};

/// Where the system describes its processes.
const PROCESSES: &str = "/proc";
/// The most processes of a child that are looked at: those nearest to it.
const PROCESSES_MAX: usize = 64;
/// The most threads of a process that are asked for the processes that they started.
const THREADS_MAX: usize = 64;
/// The most bytes that are read of a file: more than the numbers of so many processes have.
const FILE_BYTES_MAX: u64 = 4 * 1024;

/// How to look at the memory of processes.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    folder: Arc<Path>,
    page_bytes: u64,
}

impl Memory {
    /// Checks that this system says what the memory of a process is, and which processes it started.
    ///
    /// # Errors
    /// The first file that could not be read.
    pub(super) fn of_system() -> io::Result<Self> {
        Self::at(Path::new(PROCESSES))
    }

    fn at(folder: &Path) -> io::Result<Self> {
        let memory = Self { folder: folder.into(), page_bytes: rustix::param::page_size() as u64 };
        let own = std::process::id();
        memory.resident(own)?;
        memory.read(&format!("{own}/task/{own}/children"))?;
        Ok(memory)
    }

    /// Returns the bytes of resident memory of the processes that a process started, and of those that these started, without its own.
    /// Pages that several of them share count for each. Of more than 64 processes, the others do not count. A process that ends
    /// meanwhile counts as nothing. It blocks.
    pub(super) fn of_descendants(&self, ancestor: u32) -> u64 {
        let (mut seen, mut bytes) = (BTreeSet::from([ancestor]), 0_u64);
        let mut parents = VecDeque::from([ancestor]);
        while let Some(parent) = parents.pop_front() {
            for child in self.children(parent) {
                if PROCESSES_MAX < seen.len() {
                    return bytes;
                }
                // One whose parent ended is listed twice if it was adopted meanwhile.
                if seen.insert(child) {
                    bytes = bytes.saturating_add(self.resident(child).unwrap_or(0));
                    parents.push_back(child);
                }
            }
        }
        bytes
    }

    /// Returns the processes that a process started, at most so many as are looked at.
    fn children(&self, parent: u32) -> Vec<u32> {
        let mut found = Vec::new();
        let Ok(threads) = self.folder.join(format!("{parent}/task")).read_dir() else { return found };
        for thread in threads.flatten().take(THREADS_MAX) {
            let listed = self.read(&format!("{parent}/task/{}/children", thread.file_name().display()));
            let listed = listed.unwrap_or_default();
            // A space follows each number; a number that is cut has none.
            let whole = listed.rfind(' ').map_or("", |end| &listed[..end]);
            found.extend(whole.split(' ').filter_map(|number| number.parse::<u32>().ok()));
            if PROCESSES_MAX <= found.len() {
                break;
            }
        }
        found
    }

    /// Returns the bytes of resident memory of a process.
    fn resident(&self, process: u32) -> io::Result<u64> {
        let text = self.read(&format!("{process}/statm"))?;
        let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let pages =
            pages.ok_or_else(|| io::Error::other(format!("{process}/statm has no number of pages")))?;
        Ok(pages.saturating_mul(self.page_bytes))
    }

    fn read(&self, name: &str) -> io::Result<String> {
        let path = self.folder.join(name);
        let mut text = String::new();
        File::open(&path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A thread, and the processes that it started.
    type Thread<'a> = (u32, &'a [u32]);

    /// A folder like `/proc`: processes with their threads. Each process has as many pages as its number.
    fn folder(processes: &[(u32, &[Thread<'_>])]) -> (tempfile::TempDir, Memory) {
        let folder = tempfile::tempdir().unwrap();
        for (process, threads) in processes {
            for (thread, children) in *threads {
                let task = folder.path().join(format!("{process}/task/{thread}"));
                fs::create_dir_all(&task).unwrap();
                let listed = children.iter().fold(String::new(), |all, child| all + &child.to_string() + " ");
                fs::write(task.join("children"), listed).unwrap();
            }
            fs::write(folder.path().join(format!("{process}/statm")), format!("99999 {process} 1 1 0 1 0\n"))
                .unwrap();
        }
        let memory = Memory { folder: folder.path().into(), page_bytes: 10 };
        (folder, memory)
    }

    #[test]
    fn descendants_of_all_threads_count_and_the_ancestor_does_not() {
        let (_folder, memory) = folder(&[
            (1, &[(1, &[2]), (11, &[3])]),
            (2, &[(2, &[]), (12, &[4])]),
            (3, &[(3, &[])]),
            (4, &[(4, &[])]),
            (5, &[(5, &[])]),
        ]);
        assert_eq!(memory.of_descendants(1), 90);
        assert_eq!(memory.of_descendants(2), 40);
        assert_eq!(memory.of_descendants(5), 0);
    }

    /// Processes end, and are adopted, while they are looked at.
    #[test]
    fn one_that_is_gone_counts_as_nothing_and_one_that_is_listed_twice_counts_once() {
        let (_folder, memory) = folder(&[(1, &[(1, &[2, 3, 7])]), (2, &[(2, &[3, 1])]), (3, &[(3, &[])])]);
        assert_eq!(memory.of_descendants(1), 50);
        assert_eq!(memory.of_descendants(9), 0);
    }

    #[test]
    fn of_many_processes_the_first_count() {
        let children: Vec<u32> = (1_001..3_001).collect();
        let (folder, memory) = folder(&[(1, &[(1, &children)])]);
        for child in &children {
            fs::create_dir(folder.path().join(child.to_string())).unwrap();
            fs::write(folder.path().join(format!("{child}/statm")), "9 1 0\n").unwrap();
        }
        assert_eq!(memory.of_descendants(1), 64 * 10);
    }

    /// The list of children is read to a bound, which may be within a number.
    #[test]
    fn a_number_that_is_cut_names_no_process() {
        let (folder, memory) = folder(&[(1, &[(1, &[])]), (23, &[(23, &[])]), (2, &[(2, &[])])]);
        fs::write(folder.path().join("1/task/1/children"), "23 2").unwrap();
        assert_eq!(memory.of_descendants(1), 230);
    }

    #[test]
    fn a_system_that_does_not_say_it_is_refused() {
        let error = Memory::at(Path::new("/no-such-folder")).unwrap_err().to_string();
        assert!(error.starts_with("/no-such-folder/"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_system_says_it() {
        let memory = Memory::of_system().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let (own, all) = (memory.resident(child.id()).unwrap(), memory.of_descendants(std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(0 < own && 0 < all, "{own}, {all}");
    }
}
