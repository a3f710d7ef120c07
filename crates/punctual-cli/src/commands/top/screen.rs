//! A terminal screen on which each text replaces the one before.

use std::io::{self, Write};

use terminal_size::{Height, Width, terminal_size};

/// Columns and rows of a terminal that does not report its size.
const SIZE_DEFAULT: (usize, usize) = (80, 24);

#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Whether the screen was cleared.
    is_ours: bool,
}

impl Screen {
    /// Shows a text in place of the last one, as much of it as there is room for.
    pub(super) fn show(&mut self, out: &mut impl Write, text: &str) -> io::Result<()> {
        let size = terminal_size().map(|(Width(columns), Height(rows))| (columns.into(), rows.into()));
        if !std::mem::replace(&mut self.is_ours, true) {
            out.write_all(b"\x1b[H\x1b[2J")?;
        }
        out.write_all(fit(text, size.unwrap_or(SIZE_DEFAULT)).as_bytes())
    }
}

/// Lines that are written over those before them, cut to the columns; the last row stays free for the cursor.
fn fit(text: &str, (columns, rows): (usize, usize)) -> String {
    let mut fitted = String::from("\x1b[H");
    for line in text.lines().take(rows.saturating_sub(1)) {
        fitted.extend(line.chars().take(columns));
        // Clears the rest of the line, except after a full line: there the cursor is still on its last character.
        fitted += if line.chars().nth(columns.saturating_sub(1)).is_none() { "\x1b[K\n" } else { "\n" };
    }
    fitted + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn a_text_is_cut_to_the_terminal() {
        assert_eq!(fit("ab\näöü\nabcd\ne", (3, 4)), "\u{1b}[Hab\u{1b}[K\näöü\nabc\n\u{1b}[J");
        assert_eq!(fit("ab", (0, 0)), "\u{1b}[H\u{1b}[J");
    }
}
