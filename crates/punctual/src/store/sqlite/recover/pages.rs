//! The pages of an SQLite file, read without trusting what they say.
//!
//! A row counts only if its lengths, types and values fit together.
//!
//! Source: "Database File Format" of sqlite.org, the sections about the header, the freelist, b-tree pages, overflow pages and records.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use rusqlite::{
    ToSql,
    types::{ToSqlOutput, ValueRef},
};

/// The largest row that is read, in bytes: several times the largest payload and the largest history.
const ROW_BYTES_MAX: usize = 64 << 20;
/// The bytes of the file's header, which the first page begins with.
const HEADER_BYTES: usize = 100;
/// Where the header has the size of a page, the bytes that each page reserves at its end, the first page of the list of free pages, and how
/// many are free.
const PAGE_BYTES_AT: usize = 16;
const RESERVED_AT: usize = 20;
const FREE_AT: usize = 32;
const FREE_COUNT_AT: usize = 36;
/// Where it has the encoding of texts, and that of UTF-8.
const ENCODING_AT: usize = 56;
const UTF_8: u32 = 1;
/// The values of a row that are read: more than any table of punctual has.
const VALUES_MAX: usize = 64;
/// The sizes that a page can have.
const PAGE_BYTES_MIN: usize = 512;
const PAGE_BYTES_MAX: usize = 65_536;
/// The fewest usable bytes of a page that SQLite allows.
const USABLE_BYTES_MIN: usize = 480;

/// A value of a row. A text need not be UTF-8.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(bytes) => ValueRef::Text(bytes),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// A row of a table.
#[derive(Debug)]
pub(super) struct Row {
    /// Its row number, in a tree of rows.
    pub(super) number: Option<i64>,
    pub(super) values: Vec<Value>,
    /// Its size in the file.
    pub(super) bytes: usize,
}

/// How the rows of a tree are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// By row number. Only leaves have rows.
    Rows,
    /// By key: an index, or a table `WITHOUT ROWID`. Each page has rows.
    Keys,
}

impl Tree {
    /// Returns how many bytes of a row of this length are in its page. The rest is in overflow pages.
    fn local_bytes(self, bytes: usize, usable: usize) -> usize {
        let most = match self {
            Self::Rows => usable - 35,
            Self::Keys => (usable - 12) * 64 / 255 - 23,
        };
        if bytes <= most {
            return bytes;
        }
        let least = (usable - 12) * 32 / 255 - 23;
        let local = least + (bytes - least) % (usable - 4);
        if local <= most { local } else { least }
    }
}

/// A page of a file.
pub(super) struct Page {
    bytes: Vec<u8>,
    /// Where the page's own header begins.
    begin: usize,
}

impl Page {
    /// Returns the kind of its tree, and whether it is a leaf; `None` if it is no page of a tree.
    pub(super) fn tree(&self) -> Option<(Tree, bool)> {
        match self.bytes.get(self.begin)? {
            2 => Some((Tree::Keys, false)),
            5 => Some((Tree::Rows, false)),
            10 => Some((Tree::Keys, true)),
            13 => Some((Tree::Rows, true)),
            _ => None,
        }
    }

    /// Returns where its cells begin. If the number of cells is damaged, those of deleted rows can follow.
    pub(super) fn cells(&self) -> Vec<usize> {
        let Some((_, is_leaf)) = self.tree() else { return Vec::new() };
        let first = self.begin + if is_leaf { 8 } else { 12 };
        let n = two_bytes(&self.bytes, self.begin + 3).unwrap_or(0);
        (0..n).map_while(|i| two_bytes(&self.bytes, first + 2 * i)).collect()
    }

    /// Returns the pages below it.
    pub(super) fn children(&self) -> Vec<u32> {
        let Some((_, false)) = self.tree() else { return Vec::new() };
        let begins = self.cells().into_iter().chain([self.begin + 8]);
        begins.filter_map(|begin| four_bytes(&self.bytes, begin)).collect()
    }
}

/// The pages of a file.
pub(super) struct Pages {
    file: File,
    page_bytes: usize,
    usable_bytes: usize,
    /// The number of the last page. The first one is 1.
    pub(super) last: u32,
}

impl Pages {
    /// Opens a file.
    ///
    /// # Errors
    /// Those of the disk. `InvalidData` if its header has no size of pages, or another encoding than UTF-8.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        let page_bytes = match two_bytes(&header, PAGE_BYTES_AT) {
            Some(1) => PAGE_BYTES_MAX,
            Some(bytes) if bytes.is_power_of_two() && PAGE_BYTES_MIN <= bytes => bytes,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the size of its pages is damaged")),
        };
        if four_bytes(&header, ENCODING_AT) != Some(UTF_8) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its texts are not in UTF-8"));
        }
        let pages = file.metadata()?.len() / page_bytes as u64;
        Ok(Self {
            file,
            page_bytes,
            usable_bytes: (page_bytes - usize::from(header[RESERVED_AT])).max(USABLE_BYTES_MIN),
            last: u32::try_from(pages).unwrap_or(u32::MAX),
        })
    }

    /// Reads a page.
    ///
    /// # Errors
    /// Those of the disk.
    pub(super) fn read(&mut self, number: u32) -> io::Result<Page> {
        let mut bytes = vec![0; self.page_bytes];
        let at = u64::from(number.saturating_sub(1)) * self.page_bytes as u64;
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(&mut bytes)?;
        bytes.truncate(self.usable_bytes);
        Ok(Page { bytes, begin: if number == 1 { HEADER_BYTES } else { 0 } })
    }

    /// Returns how many pages a file of so many bytes has.
    pub(super) fn in_bytes(&self, bytes: u64) -> u64 {
        bytes / self.page_bytes as u64
    }

    /// Returns whether there is a page of this number.
    pub(super) const fn has(&self, number: u32) -> bool {
        1 <= number && number <= self.last
    }

    /// Returns which pages are free, by number. `None` if the list of free pages is damaged.
    ///
    /// # Errors
    /// Those of the disk.
    pub(super) fn free(&mut self) -> io::Result<Option<Vec<bool>>> {
        let first = self.read(1)?;
        let [mut trunk, all] = [FREE_AT, FREE_COUNT_AT].map(|at| four_bytes(&first.bytes, at).unwrap_or(0));
        let mut free = vec![false; self.last as usize + 1];
        let mut found = 0;
        while trunk != 0 {
            let page = if self.has(trunk) { self.read(trunk)? } else { return Ok(None) };
            let n = four_bytes(&page.bytes, 4).unwrap_or(u32::MAX) as usize;
            if self.usable_bytes / 4 < n.saturating_add(2) {
                return Ok(None);
            }
            let leaves = (0..n).filter_map(|i| four_bytes(&page.bytes, 8 + 4 * i));
            for number in leaves.chain([trunk]) {
                if !self.has(number) || std::mem::replace(&mut free[number as usize], true) {
                    return Ok(None);
                }
                found += 1;
            }
            trunk = four_bytes(&page.bytes, 0).unwrap_or(0);
        }
        Ok((found == all).then_some(free))
    }

    /// Reads the row of a cell. `None` if it is damaged.
    ///
    /// # Errors
    /// Those of the disk.
    pub(super) fn row(&mut self, page: &Page, cell: usize) -> io::Result<Option<Row>> {
        let Some(Cell { number, bytes, rest, mut next }) = cell_at(page, cell, self.usable_bytes) else {
            return Ok(None);
        };
        let (mut payload, all) = (bytes.to_vec(), bytes.len() + rest);
        if (self.last as usize).saturating_mul(self.usable_bytes) < all {
            return Ok(None);
        }
        while payload.len() < all {
            let page = if self.has(next) { self.read(next)? } else { return Ok(None) };
            let n = (all - payload.len()).min(self.usable_bytes - 4);
            payload.extend_from_slice(&page.bytes[4..4 + n]);
            next = four_bytes(&page.bytes, 0).unwrap_or(0);
        }
        Ok(if next == 0 { values(&payload).map(|values| Row { number, values, bytes: all }) } else { None })
    }
}

/// A cell with a row.
struct Cell<'a> {
    number: Option<i64>,
    /// The row's bytes in the page.
    bytes: &'a [u8],
    /// How many more are in overflow pages, and the first of them.
    rest: usize,
    next: u32,
}

fn cell_at(page: &Page, begin: usize, usable: usize) -> Option<Cell<'_>> {
    let (tree, is_leaf) = page.tree()?;
    let mut at = match (tree, is_leaf) {
        (_, true) => begin,
        // After the child.
        (Tree::Keys, false) => begin + 4,
        (Tree::Rows, false) => return None,
    };
    let all = usize::try_from(varint(&page.bytes, &mut at)?).ok().filter(|bytes| *bytes <= ROW_BYTES_MAX)?;
    let number = match tree {
        Tree::Rows => Some(varint(&page.bytes, &mut at)?.cast_signed()),
        Tree::Keys => None,
    };
    let local = tree.local_bytes(all, usable);
    let bytes = page.bytes.get(at..at + local)?;
    let next = if local < all { four_bytes(&page.bytes, at + local)? } else { 0 };
    Some(Cell { number, bytes, rest: all - local, next })
}

/// Returns the values of a row. `None` if there are none, or too many, or if they do not fill it exactly.
fn values(row: &[u8]) -> Option<Vec<Value>> {
    let mut at = 0;
    let head = usize::try_from(varint(row, &mut at)?).ok().filter(|head| *head <= row.len())?;
    let (mut values, mut body) = (Vec::new(), head);
    while at < head && values.len() < VALUES_MAX {
        let code = varint(row, &mut at)?;
        let size = match code {
            0 | 8 | 9 => 0,
            1..=4 => code,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            _ => (code - 12) / 2,
        };
        let end = body.checked_add(usize::try_from(size).ok()?)?;
        let bytes = row.get(body..end)?;
        body = end;
        values.push(match code {
            0 => Value::Null,
            7 => Value::Real(f64::from_bits(integer(bytes).cast_unsigned())),
            1..=6 => Value::Integer(integer(bytes)),
            8 | 9 => Value::Integer(code.cast_signed() - 8),
            _ if code % 2 == 0 => Value::Blob(bytes.to_vec()),
            _ => Value::Text(bytes.to_vec()),
        });
    }
    (at == head && body == row.len() && !values.is_empty()).then_some(values)
}

/// Returns the integer of up to eight bytes.
fn integer(bytes: &[u8]) -> i64 {
    let sign = if bytes.first().is_some_and(|first| 128 <= *first) { -1 } else { 0 };
    bytes.iter().fold(sign, |number, byte| number << 8 | i64::from(*byte))
}

/// Reads a number of one to nine bytes, and goes on after it.
fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0;
    for i in 0..9 {
        let byte = u64::from(*bytes.get(*at)?);
        *at += 1;
        if i == 8 {
            return Some(number << 8 | byte);
        }
        number = number << 7 | byte & 127;
        if byte < 128 {
            break;
        }
    }
    Some(number)
}

fn two_bytes(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 2)?;
    Some(usize::from(u16::from_be_bytes([bytes[0], bytes[1]])))
}

fn four_bytes(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rusqlite::Connection;

    use super::*;

    /// Rows of each kind of value and of many lengths are read as SQLite wrote them, from trees of both kinds.
    #[test]
    fn rows_are_read_as_sqlite_wrote_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let conn = Connection::open(file.path()).unwrap();
        conn.execute_batch(
            "CREATE TABLE a (n INTEGER PRIMARY KEY, i, r, t, b);
            CREATE TABLE b (n INTEGER PRIMARY KEY, i, r, t, b) WITHOUT ROWID;",
        )
        .unwrap();
        let integers = [0, 1, 2, -1, 127, -128, 40_000, -8_000_000, 1 << 30, -1 << 40, i64::MIN, i64::MAX];
        let mut made = Vec::new();
        for (n, bytes) in (0..9_000).step_by(97).chain([50_000]).enumerate() {
            let values = [
                Value::Integer(i64::try_from(n).unwrap() - 20),
                Value::Integer(integers[n % integers.len()]),
                if n % 3 == 0 { Value::Null } else { Value::Real(n as f64 / 7.0) },
                Value::Text(vec![b'x'; n % 60]),
                Value::Blob(vec![n as u8; bytes]),
            ];
            for table in ["a", "b"] {
                let sql = format!("INSERT INTO {table} VALUES (?, ?, ?, ?, ?)");
                conn.execute(&sql, rusqlite::params_from_iter(&values)).unwrap();
            }
            made.push(values.to_vec());
        }
        conn.close().unwrap();
        let mut pages = Pages::open(file.path()).unwrap();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for number in 2..=pages.last {
            let page = pages.read(number).unwrap();
            for cell in page.cells() {
                let Some(row) = pages.row(&page, cell).unwrap() else { continue };
                let mut values = row.values;
                if let Some(number) = row.number {
                    values[0] = Value::Integer(number);
                    a.push(values);
                } else {
                    b.push(values);
                }
            }
        }
        let by_number = |row: &Vec<Value>| if let Value::Integer(n) = row[0] { n } else { i64::MAX };
        a.sort_by_key(by_number);
        b.sort_by_key(by_number);
        assert!(a == made && b == made, "{} and {} of {} rows", a.len(), b.len(), made.len());
    }

    proptest! {
        /// Whatever is in a file, reading it ends, without a panic.
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 3 * 512), kind in 0_usize..4, n in 0_u8..40) {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut bytes = bytes;
            bytes[PAGE_BYTES_AT..PAGE_BYTES_AT + 2].copy_from_slice(&[2, 0]);
            bytes[ENCODING_AT..ENCODING_AT + 4].copy_from_slice(&[0, 0, 0, 1]);
            for begin in [HEADER_BYTES, 512, 1_024] {
                bytes[begin] = [2, 5, 10, 13][kind];
                bytes[begin + 3..begin + 5].copy_from_slice(&[0, n]);
            }
            std::fs::write(file.path(), bytes).unwrap();
            let mut pages = Pages::open(file.path()).unwrap();
            let _ = pages.free().unwrap();
            for number in 1..=pages.last {
                let page = pages.read(number).unwrap();
                prop_assert!(page.children().len() <= 512);
                for cell in page.cells() {
                    let _ = pages.row(&page, cell).unwrap();
                }
            }
        }
    }
}
