//! Where a scenario keeps its jobs: in the store that `--store URL` names, which has none yet, or else in a new file that is
//! gone afterwards.

use tempfile::TempDir;

/// A store for one run of a scenario.
pub(crate) struct Place {
    pub(crate) url: String,
    /// Goes with it.
    _folder: TempDir,
}

impl Place {
    /// Reads the arguments. A scenario counts what it does: on Redis it gets a prefix of its own unless one is named.
    pub(crate) fn named() -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let url = match argument("--store") {
            None => format!("sqlite:{}", folder.path().join("jobs.db").display()),
            Some(url) if url.starts_with("redis") && !url.contains("prefix=") => {
                let joint = if url.contains('?') { '&' } else { '?' };
                format!("{url}{joint}prefix=scenario-{:08x}", fastrand::u32(..))
            }
            Some(url) => url,
        };
        Ok(Self { url, _folder: folder })
    }
}

/// The word behind this one on the command line.
pub(crate) fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|word| word != name).nth(1)
}
