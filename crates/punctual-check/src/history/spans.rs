//! Stretches of time, and many of them.

/// From just before a call to just after its answer; `to` is [`NEVER`] for what was not answered and may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

pub(crate) const NS_PER_MS: u64 = 1_000_000;

/// Later than everything.
pub(crate) const NEVER: u64 = u64::MAX;

impl Span {
    /// Whether this surely took effect earlier than `other`.
    pub(crate) const fn before(self, other: Self) -> bool {
        self.to < other.from
    }

    /// Whether the two have an instant in common.
    pub(crate) const fn meets(self, other: Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

/// Joins those that overlap, or are no further apart than this, in nanoseconds. By time.
pub(crate) fn joined(mut spans: Vec<Span>, apart: u64) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.from);
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.from <= last.to.saturating_add(apart) => last.to = last.to.max(span.to),
            _ => joined.push(span),
        }
    }
    joined
}

/// Spans that can be asked, in O(log n), whether one of them touches a stretch of time.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// By `from`.
    rows: Vec<Span>,
    /// The latest `to` up to and including each row.
    latest: Vec<u64>,
}

impl Spans {
    pub(crate) fn new(mut rows: Vec<Span>) -> Self {
        rows.sort_unstable_by_key(|span| span.from);
        let latest = rows
            .iter()
            .scan(0, |max, span| {
                *max = span.to.max(*max);
                Some(*max)
            })
            .collect();
        Self { rows, latest }
    }

    /// Whether something may have happened after `from` and before `to`.
    pub(crate) fn touch(&self, from: u64, to: u64) -> bool {
        let n = self.rows.partition_point(|span| span.from < to);
        0 < n && from < self.latest[n - 1]
    }

    /// The first instant from `from` on at which something may have happened.
    pub(crate) fn first_after(&self, from: u64) -> u64 {
        let n = self.rows.partition_point(|span| span.from <= from);
        if 0 < n && from < self.latest[n - 1] {
            from
        } else {
            self.rows.get(n).map_or(NEVER, |span| span.from)
        }
    }
}
