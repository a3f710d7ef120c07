//! Prints results to stdout and messages to stderr. Texts of jobs are cleaned before a terminal gets them.

use std::{
    borrow::Cow,
    io::{self, BufWriter, Stdout, Write},
};

use clap::builder::styling::Style;
use punctual::words;
use serde::Serialize;

/// Stands between groups of three digits.
pub(crate) const SEPARATOR: char = ' ';

/// The format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Human,
    /// For people, with more columns.
    Wide,
    /// One JSON value.
    Json,
    /// One JSON value per line.
    Ndjson,
    /// Ids only, one per line.
    Ids,
}

impl Format {
    /// Whether people read it.
    pub(crate) const fn is_for_people(self) -> bool {
        matches!(self, Self::Human | Self::Wide)
    }

    /// Whether programs read it.
    pub(crate) const fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::Ndjson)
    }
}

/// Standard output, buffered. Commands flush it.
pub(crate) type Out = BufWriter<Stdout>;

/// Prints one JSON value on a line of its own.
pub(crate) fn json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Escapes characters that a terminal acts on: control characters, and those that reverse the direction of writing.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' | '\t' => safe.push(' '),
            c if obeyed(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// At most `chars` characters, with `…` for what was cut.
pub(crate) fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some(_) => text.chars().take(chars - 1).chain(['…']).collect(),
    }
}

/// `1 204 331`.
pub(crate) fn grouped(n: u64) -> String {
    words::grouped(n, SEPARATOR)
}

/// `172 KiB`, `91 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB")];
    // A unit is used from ten of it on; fewer would hide changes.
    let unit = units.into_iter().find(|(shift, _)| 10 << shift <= bytes);
    let (shift, name) = unit.unwrap_or((10, "KiB"));
    format!("{} {name}", grouped(bytes >> shift))
}

/// `1 job`, `2 jobs`.
pub(crate) fn counted(n: u64, noun: &str) -> String {
    words::counted(n, noun, SEPARATOR)
}

/// A table without borders, so that other programs can split its columns.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Cells with a colour: row, column.
    styles: Vec<(usize, usize, Style)>,
}

impl Table {
    pub(crate) fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new(), styles: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| clean(&cell).into_owned()).collect();
        debug_assert_eq!(cells.len(), self.head.len(), "a cell for every column");
        self.rows.push(cells);
    }

    /// Gives a cell of the last row a colour.
    pub(crate) fn paint(&mut self, column: usize, style: Style) {
        self.styles.push((self.rows.len() - 1, column, style));
    }

    /// Prints the head and the rows. Columns of numbers are aligned right.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let column = |i: usize| self.rows.iter().map(move |row| row[i].as_str());
        let shape: Vec<(usize, bool)> = (0..self.head.len())
            .map(|i| {
                let widest = column(i).chain([self.head[i].as_str()]).map(|cell| cell.chars().count()).max();
                let numbers =
                    column(i).all(|cell| cell.bytes().all(|b| b.is_ascii_digit() || b" .".contains(&b)));
                (widest.unwrap_or(0), numbers && !self.rows.is_empty())
            })
            .collect();
        let mut line = |cells: &mut dyn Iterator<Item = &str>, styles: &[(usize, usize, Style)]| {
            let mut text = String::new();
            for (i, (cell, (width, right))) in cells.zip(&shape).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                let (before, behind) = if *right { (pad.as_str(), "") } else { ("", pad.as_str()) };
                match styles.iter().find(|(_, column, _)| *column == i) {
                    Some((_, _, style)) => text += &format!("{before}{style}{cell}{style:#}{behind}  "),
                    None => text.extend([before, cell, behind, "  "]),
                }
            }
            writeln!(out, "{}", text.trim_end())
        };
        line(&mut self.head.iter().map(String::as_str), &[])?;
        let mut styles = &self.styles[..];
        for (i, row) in self.rows.iter().enumerate() {
            let (here, behind) = styles.split_at(styles.partition_point(|(at, ..)| *at == i));
            styles = behind;
            line(&mut row.iter().map(String::as_str), here)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paint::Color;

    #[test]
    fn tables_have_no_borders_and_numbers_to_the_right() {
        let mut table = Table::new(["QUEUE", "DUE", "STATE"]);
        table.row(["mail".into(), "7".into(), "paused".into()]);
        table.row(["a-long-one".into(), "1 204".into(), String::new()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "QUEUE         DUE  STATE\nmail            7  paused\na-long-one  1 204\n"
        );
    }

    #[test]
    fn a_colour_takes_no_room() {
        let mut table = Table::new(["STATE", "N"]);
        table.row(["dead".into(), "1".into()]);
        table.paint(0, Color::Always.on(&io::stdout()).status(punctual::job::Status::Dead));
        table.row(["done".into(), "22".into()]);
        table.paint(0, Color::Never.on(&io::stdout()).status(punctual::job::Status::Done));
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "STATE   N\n\u{1b}[1m\u{1b}[31mdead\u{1b}[0m    1\ndone   22\n"
        );
    }

    #[test]
    fn a_terminal_obeys_no_job() {
        assert_eq!(clean("a\u{1b}[2Jb\nc\u{202e}d"), "a\\u{1b}[2Jb c\\u{202e}d");
        assert_eq!(clean("smtp 421 – später"), "smtp 421 – später");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_204_331].map(grouped), ["0", "999", "1 000", "1 204 331"]);
    }

    #[test]
    fn sizes_have_two_digits_at_least_where_there_is_a_smaller_unit() {
        let sizes = [0, 4_096, 9 << 20, 10 << 20, 9 << 30, 10 << 30];
        let texts = ["0 KiB", "4 KiB", "9 216 KiB", "10 MiB", "9 216 MiB", "10 GiB"];
        assert_eq!(sizes.map(size), texts);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöüß", 3), "äö…");
    }
}
