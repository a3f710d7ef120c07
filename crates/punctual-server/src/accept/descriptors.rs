//! The descriptors of the process: connections leave some of them to the store.

/// Descriptors that no connection takes: those of the store, its log, and requests to other systems.
const KEPT: usize = 128;

/// Returns how many connections can be open at once, at most `wanted`.
pub(super) fn connections(wanted: usize) -> usize {
    limit().map_or(wanted, |limit| wanted.min(left(limit)))
}

/// Returns what is left of a limit: a quarter of a small one is kept.
const fn left(limit: usize) -> usize {
    let quarter = limit / 4;
    let left = limit - if quarter < KEPT { quarter } else { KEPT };
    if left == 0 { 1 } else { left }
}

/// Reads the limit, where the system says it. It can have been raised at the start of the process.
fn limit() -> Option<usize> {
    of(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

fn of(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_descriptors_are_kept() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(of(limits), Some(1_024));
        assert_eq!(of("Max open files            unlimited            unlimited            files\n"), None);
        assert_eq!((left(1_024), left(64), left(1)), (896, 48, 1));
    }
}
