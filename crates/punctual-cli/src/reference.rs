//! Tests of the pages in docs/reference: each says what the code says. This writes them again after a change:
//!
//! ```text
//! PUNCTUAL_WRITE_REFERENCE=1 cargo test -p punctual-cli --lib reference
//! ```

mod errors;
mod filters;
mod settings;

use std::{env, fs, path::PathBuf, time::Duration};

/// The variable with which the tests write the pages.
const WRITE: &str = "PUNCTUAL_WRITE_REFERENCE";

/// Compares a page with what the code says, or writes it.
fn check(name: &str, expected: &str) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if env::var_os(WRITE).is_some() {
        fs::write(&file, expected).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        return;
    }
    let page = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let lines = page.lines().map(Some).chain([None]).zip(expected.lines().map(Some).chain([None]));
    for (n, (on_page, in_code)) in (1..).zip(lines) {
        assert_eq!(
            on_page, in_code,
            "docs/reference/{name}:{n} (left) is not what the code says (right); write the page again with \
             {WRITE}=1 cargo test -p punctual-cli --lib reference"
        );
    }
    assert_eq!(page, expected, "docs/reference/{name}");
}

/// A table. Its first row is the head.
fn table<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut text = String::new();
    for (n, row) in rows.into_iter().enumerate() {
        let cells = row.map(|cell| cell.replace('|', "\\|"));
        text += &format!("| {} |\n", cells.join(" | "));
        if n == 0 {
            text += &format!("|{}\n", "---|".repeat(N));
        }
    }
    text + "\n"
}

/// A row of texts.
fn row<const N: usize>(cells: [&str; N]) -> [String; N] {
    cells.map(str::to_owned)
}

/// A text as code.
fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}

/// Texts as code, with commas between them.
fn codes<T: std::fmt::Display>(texts: impl IntoIterator<Item = T>) -> String {
    texts.into_iter().map(code).collect::<Vec<_>>().join(", ")
}

/// A number: `1,000`.
fn number(n: u64) -> String {
    punctual::words::grouped(n, ',')
}

/// A size: `64 MiB`.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| 0 < bytes && bytes.is_multiple_of(1 << shift));
    unit.map_or(format!("{} bytes", number(bytes)), |(shift, unit)| {
        format!("{} {unit}", number(bytes >> shift))
    })
}

/// A time: `15 s`, `24 h`, `7 d`.
fn time(length: Duration) -> String {
    let ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let units = [(2 * 86_400_000, 86_400_000, "d"), (1, 3_600_000, "h"), (1, 60_000, "min"), (1, 1_000, "s")];
    let unit = units.into_iter().find(|(least, unit, _)| (*least).max(1) <= ms && ms.is_multiple_of(*unit));
    match unit {
        Some((_, unit, name)) => format!("{} {name}", number(ms / unit)),
        None if ms == 0 => "0 s".to_owned(),
        None => format!("{} ms", number(ms)),
    }
}

#[test]
fn values_are_written_as_in_the_guide() {
    assert_eq!([time(Duration::ZERO), time(Duration::from_millis(100))], ["0 s", "100 ms"]);
    assert_eq!([time(Duration::from_secs(90)), time(Duration::from_mins(5))], ["90 s", "5 min"]);
    assert_eq!([time(Duration::from_hours(24)), time(Duration::from_hours(168))], ["24 h", "7 d"]);
    assert_eq!([size(64 << 20), size(1_000), number(10_000)], ["64 MiB", "1,000 bytes", "10,000"]);
}
