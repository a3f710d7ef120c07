//! A histogram of due times: bars, and the same numbers as a table.

use std::time::Duration;

use askama::{Template, filters::HtmlSafe};
use punctual::{Timestamp, store::Histogram};

use super::text::{clock, count, counted};

/// The width of the drawing, in its own units.
const WIDTH: f64 = 1_000.0;
/// The height of the highest bar.
const HEIGHT: f64 = 150.0;
/// The least height of a bar that stands for any jobs.
const HEIGHT_MIN: f64 = 3.0;
/// How much higher than all others the overdue bar can be before it is cut.
const OVERDUE_MAX: u64 = 3;
/// Gaps between bars, as a part of their width.
const GAP: f64 = 0.22;
/// The number of times below the bars.
const MARKS: usize = 6;

/// A bar and its row.
struct Bar {
    x: String,
    y: String,
    width: String,
    height: String,
    is_late: bool,
    name: String,
    count: String,
}

/// A histogram as an element.
#[derive(Template)]
#[template(path = "chart.html")]
pub(super) struct Chart {
    bars: Vec<Bar>,
    /// Rows of the table: buckets with jobs.
    rows: Vec<(String, String)>,
    marks: Vec<String>,
    summary: String,
    top: String,
    is_cut: bool,
    is_empty: bool,
}

impl HtmlSafe for Chart {}

impl Chart {
    /// Draws a histogram whose buckets have this width. `format` is how the beginning of a bucket is written.
    pub(super) fn new(of: &Histogram, width: Duration, format: &str) -> Self {
        let begin = |i: usize| of.now.after(width * u32::try_from(i).unwrap_or(u32::MAX));
        let most = of.buckets.iter().copied().max().unwrap_or(0);
        let is_cut = 0 < most && most * OVERDUE_MAX < of.overdue;
        let top = if is_cut { most * OVERDUE_MAX } else { most.max(of.overdue) };
        // The overdue bar is set apart by half a bar.
        let step = WIDTH / (of.buckets.len() as f64 + 1.5);
        let name = |i: usize| format!("{}–{}", clock(begin(i), format), clock(begin(i + 1), format));
        let overdue = (0.0, "overdue".to_owned(), of.overdue, true);
        let later = of.buckets.iter().enumerate().map(|(i, n)| (i as f64 + 1.5, name(i), *n, false));
        let all: Vec<_> = [overdue].into_iter().chain(later).collect();
        let rows = all.iter().filter(|(.., n, _)| 0 < *n).map(|(_, name, n, _)| (name.clone(), count(*n)));
        let rows = rows.collect();
        let bar = |(place, name, n, is_late): (f64, String, u64, bool)| {
            let height = if n == 0 { 0.0 } else { (n.min(top) as f64 / top as f64 * HEIGHT).max(HEIGHT_MIN) };
            Bar {
                x: format!("{:.2}", place * step),
                y: format!("{:.2}", HEIGHT - height),
                width: format!("{:.2}", step * (1.0 - GAP)),
                height: format!("{height:.2}"),
                is_late,
                name,
                count: counted(n, "job"),
            }
        };
        Self {
            bars: all.into_iter().map(bar).collect(),
            rows,
            marks: marks(of, begin, format),
            summary: summary(of),
            top: count(top),
            is_cut,
            is_empty: top == 0,
        }
    }
}

/// Times at equal distances.
fn marks(of: &Histogram, begin: impl Fn(usize) -> Timestamp, format: &str) -> Vec<String> {
    (0..=MARKS).map(|i| clock(begin(of.buckets.len() * i / MARKS), format)).collect()
}

fn summary(of: &Histogram) -> String {
    let sum = of.buckets.iter().sum::<u64>();
    let at_least = if of.complete { "" } else { "at least " };
    format!("{at_least}{} due, {} overdue", counted(sum, "job"), count(of.overdue))
}
