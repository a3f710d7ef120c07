//! Where a file is: whether other processes can reach it by a path beside which they would look for another log.
//!
//! SQLite keeps its log and its index beside the path by which a file was opened. Two paths in different folders, or with
//! different names, are two logs for one file: each process overwrites what it does not see. Symbolic links are no such
//! paths, because they are followed first. Neither are two mounts of a folder, because the log is in that folder.

use std::{fs, path::Path};

use crate::core::error::{Error, ErrorKind, Result};

/// Lists the mounts that this process sees (proc(5)).
const MOUNTS: &str = "/proc/self/mountinfo";
/// The field of its lines with the mount point.
const MOUNT_POINT: usize = 4;

/// Refuses an existing file that has several names, or that is mounted alone.
pub(crate) fn check(path: &Path) -> Result<()> {
    let Ok(path) = path.canonicalize() else { return Ok(()) };
    let Some(found) = fs::metadata(&path).ok().filter(fs::Metadata::is_file) else { return Ok(()) };
    check_names(&path, &found)?;
    // Without that list, such as on other systems, there is nothing to compare.
    let mounts = fs::read(MOUNTS).unwrap_or_default();
    if !has_mount_point(&mounts, &path) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "{} is mounted as a single file: its log would be beside this path only, and jobs would be lost",
            path.display()
        ),
    )
    .with_hint("mount its folder, for example `docker run -v ./data:/data`; to read a copy, add mode=ro"))
}

/// Refuses a file with several names. One system call has told how many it has.
#[cfg(unix)]
pub(crate) fn check_names(path: &Path, found: &fs::Metadata) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    if found.nlink() <= 1 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!(
            "{} has {} names (hard links): a process that opens another one would overwrite jobs; nothing was written",
            path.display(),
            found.nlink()
        ),
    )
    .with_hint("find the others with `find FOLDER -samefile FILE` and remove them; symbolic links are fine"))
}

#[cfg(not(unix))]
pub(crate) fn check_names(_path: &Path, _found: &fs::Metadata) -> Result<()> {
    Ok(())
}

/// Returns whether a list of mounts has exactly this path.
#[cfg(unix)]
fn has_mount_point(mounts: &[u8], path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let path = path.as_os_str().as_bytes();
    let points = mounts
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(MOUNT_POINT));
    points.into_iter().any(|point| unescaped(point) == path)
}

#[cfg(not(unix))]
const fn has_mount_point(_mounts: &[u8], _path: &Path) -> bool {
    false
}

/// Returns a path of the list as it is: blanks, line ends and backslashes are written as three octal digits there.
#[cfg(unix)]
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .filter(|digits| first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        rest = if let Some(digits) = digits {
            plain.push(digits.iter().fold(0_u8, |n, digit| n.wrapping_mul(8).wrapping_add(digit - b'0')));
            &after[3..]
        } else {
            plain.push(first);
            after
        };
    }
    plain
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_compared_as_a_whole_and_without_escapes() {
        let mounts = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            91 27 254:0 /srv/a/jobs.db /srv/b\\040c/jobs.db rw - ext4 /dev/vda rw\n\
            92 27 254:0 /srv/d /srv/d rw - ext4 /dev/vda rw\n";
        for (path, is_one) in [
            ("/srv/b c/jobs.db", true),
            ("/srv/a/jobs.db", false),
            ("/srv/d/jobs.db", false),
            ("/srv/b c/jobs", false),
            ("/srv/d", true),
        ] {
            assert_eq!(has_mount_point(mounts, Path::new(path)), is_one, "{path}");
        }
    }
}
