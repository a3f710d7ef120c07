//! Recovery: copies what can be read of a damaged file into a new one.
//!
//! SQLite does not go past a damaged page, so a few wrong bits can hold up every job of a file. The pages are copied as they are, with
//! those of the log. Each is then read alone (`pages`), and its rows are put into the tables of a new file. What they say of each other
//! is checked by an audit of the new file.
//!
//! A page belongs to the table from whose root it is reached, if at least half of its rows fit that table. Otherwise, or if a page above it is
//! damaged, it belongs to the only table that its rows fit. Free pages still have rows that were deleted, so they are left out wherever they
//! are met.

mod pages;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rusqlite::{
    Connection, ErrorCode, OpenFlags,
    backup::{Backup, StepResult},
    config::DbConfig,
    params_from_iter,
};
use serde::Serialize;

use super::SqliteStore;
use crate::{
    core::error::{Error, ErrorKind, Result},
    store::{
        sqlite::engine::{
            fault,
            file::{BUSY_TIMEOUT, log_pages, private, real_path, with_suffix},
            names::Names,
            schema,
            sql::named,
            users::Users,
        },
        url,
    },
};
use pages::{Page, Pages, Tree, Value};

const FILE: &str = include_str!("sql/recover.sql");
const TABLES: &str = named(FILE, "tables");
const COLUMNS: &str = named(FILE, "columns");
const COUNT_DOCS: &str = named(FILE, "count_docs");
const IS_COMPLETE: &str = named(FILE, "is_complete");
const WAIT: &str = named(FILE, "wait");
const EXPIRE: &str = named(FILE, "expire");

/// Tables whose rows look like those of an index. A page of them that no tree leads to is left out.
const LIKE_AN_INDEX: [&str; 3] = ["punctual_due", "punctual_expiry", "punctual_meta"];
/// The most bytes of rows, with overflow pages, that are read from one page. Damaged pages could otherwise refer to the same overflow pages many
/// times.
const PAGE_ROWS_BYTES_MAX: usize = 256 << 20;
/// Tables that have rows in a new file. These are deleted first, so that those of the damaged file can be inserted. A row that was lost is
/// made again: that of documents here, the others when they are needed.
const EMPTIED: [&str; 3] = ["punctual_meta", "punctual_state", "punctual_docs"];
/// The tables of waiting jobs.
const WAITING: [&str; 3] = ["punctual_due", "punctual_grouped", "punctual_parked"];
/// The table of records.
const RECORDS: &str = "punctual_job";
/// The page with the root of SQLite's own table of tables, and the columns of that: type, name, table, root page, SQL.
const SCHEMA_PAGE: u32 = 1;
const SCHEMA_COLUMNS: usize = 5;

/// What was read of a damaged file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recovered {
    /// The records that were copied: jobs in all states.
    pub jobs: u64,
    /// The rows that were copied, of all tables.
    pub rows: u64,
    /// The rows that could not be read or inserted, without those of lost pages.
    pub lost_rows: u64,
    /// The pages of the file.
    pub pages: u64,
    /// About how many pages of tables were lost: damaged, missing, free although a tree leads to them, or of no known table.
    pub lost_pages: u64,
}

impl SqliteStore {
    /// Copies what can be read of a damaged file into a new one. The damaged file is not changed.
    ///
    /// `url` is the address of the damaged file; its options are ignored. `to` is the path of the new file. `progress` is called with the number
    /// of the page that is read, and with that of the last page. Afterwards the new file needs an [audit](crate::Client::audit) that repairs.
    /// If the ends and leases of all jobs were read, the others wait as before. Otherwise a job whose state was not read is made dead by the
    /// audit, with the reason `orphan`.
    ///
    /// Programs can use the damaged file meanwhile. The copy has what was committed before. It needs twice the size of the file on the disk of
    /// `to`. This user must be able to write the damaged file and its folder, because SQLite can create `-wal` and `-shm` there. Tables of an
    /// application that shares the file are not copied.
    ///
    /// If the future is dropped, the work goes on in the background. `to` exists once it is whole. If the process is killed, remove the files whose
    /// names are `to` with `-pages`, `-unfinished` and `-unfinished-journal`.
    ///
    /// # Errors
    /// `Unsupported` if `url` does not name a file. `Conflict` if `to` or one of its temporary files exists. `Corrupt` if the file is no SQLite
    /// database, or its header is damaged. `Outdated` if its schema version is older than this version recovers, or newer than it knows.
    /// `Unavailable` or `StoreFull` if a file cannot be read or written. After an error, this call has made no file at `to`.
    ///
    /// ```
    /// use punctual::{Client, store::sqlite::SqliteStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
    /// # drop(Client::connect(&url).await?);
    /// let to = folder.path().join("new.db");
    /// let recovered = SqliteStore::recover(&url, &to, |_, _| {}).await?;
    /// assert_eq!(recovered.lost_rows, 0);
    /// let client = Client::connect(&format!("sqlite:{}", to.display())).await?;
    /// client.audit(true, |_| {}).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn recover(
        url: &str,
        to: impl Into<PathBuf>,
        progress: impl FnMut(u32, u32) + Send + 'static,
    ) -> Result<Recovered> {
        let (Some(from), to) = (url::file_of(url)?, to.into()) else {
            let text = "only a store in an SQLite file can be recovered";
            return Err(Error::new(ErrorKind::Unsupported, text).with_hint("name a file, as sqlite:jobs.db"));
        };
        let work = tokio::task::spawn_blocking(move || recover(&from, &to, progress));
        work.await.map_err(|e| {
            Error::new(ErrorKind::Closed, "the runtime ended while a file was recovered").with_source(e)
        })?
    }
}

/// Files that are removed unless they are kept.
struct Made(Vec<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

fn recover(from: &Path, to: &Path, mut progress: impl FnMut(u32, u32)) -> Result<Recovered> {
    if !from.is_file() {
        return Err(Error::new(ErrorKind::Unavailable, format!("there is no store at {}", from.display()))
            .with_hint("name the damaged file"));
    }
    // If another process has the file open and its log was removed, SQLite would create a new log. That process could then no longer save its own.
    Users::check(&Names::of(real_path(from)?))?;
    if to.exists() {
        return Err(exists(to));
    }
    let (copy, unfinished) = (with_suffix(to, "-pages"), with_suffix(to, "-unfinished"));
    let mut made = Made(Vec::new());
    for path in [&copy, &unfinished] {
        make(path)?;
        made.0.push(path.clone());
    }
    let unread = |e| unreadable(from, e);
    let file_bytes = copy_pages(from, &copy)?;
    let mut pages = Pages::open(&copy).map_err(unread)?;
    let mut new = Connection::open(&unfinished).map_err(|e| fault::error("open", to, e))?;
    schema::migrate(&mut new, to)?;
    let tables = tables(&new).map_err(|e| fault::error("read from", to, e))?;
    let mut trees = roots(&mut pages).map_err(unread)?;
    // A table that the file does not name any more is looked for where a new file has it.
    for table in &tables {
        if !trees.iter().any(|(name, _)| name == table.name.as_bytes()) {
            trees.push((table.name.clone().into_bytes(), table.root));
        }
    }
    let map = Map::of(&mut pages, &tables, &trees).map_err(unread)?;

    let mut recovered = Recovered { pages: pages.last.into(), lost_pages: map.lost, ..Recovered::default() };
    // Pages after the last one that the header counts were not copied.
    recovered.lost_pages +=
        file_bytes.map_or(0, |bytes| pages.in_bytes(bytes)).saturating_sub(recovered.pages);
    let failed = |e| fault::error("write to", to, e);
    let tx = new.transaction().map_err(failed)?;
    for name in EMPTIED {
        tx.execute(&format!("DELETE FROM {name}"), []).map_err(failed)?;
    }
    for number in 1..=pages.last {
        progress(number, pages.last);
        let page = pages.read(number).map_err(unread)?;
        let table = match map.owners[number as usize] {
            Owner::Table(table) => Some(&tables[table]),
            Owner::Nobody if !map.is_known_free(number) => {
                let rows = rows(&mut pages, &page).map_err(unread)?.0;
                let table = only_fitting(&tables, &page, &rows).filter(|_| map.is_known_in_use(number));
                recovered.lost_pages += u64::from(table.is_none() && !rows.is_empty());
                table
            }
            Owner::Nobody | Owner::Other => None,
        };
        let Some(table) = table else { continue };
        let (rows, lost) = rows(&mut pages, &page).map_err(unread)?;
        recovered.lost_rows += lost;
        for row in rows {
            let is_in = table.insert(&tx, row).map_err(failed)?;
            recovered.rows += u64::from(is_in);
            recovered.jobs += u64::from(is_in && table.name == RECORDS);
            recovered.lost_rows += u64::from(!is_in);
        }
    }
    schema::accept_recovered(&tx, from)?;
    tx.execute(COUNT_DOCS, []).map_err(failed)?;
    let is_complete = tx.query_row(IS_COMPLETE, [], |row| row.get::<_, bool>(0)).map_err(failed)?;
    if is_complete { rebuild_waiting(&tx) } else { drop_ended_from_waiting(&tx) }.map_err(failed)?;
    tx.commit().map_err(failed)?;
    new.close().map_err(|(_, e)| failed(e))?;
    if to.exists() {
        return Err(exists(to));
    }
    fs::rename(&unfinished, to).map_err(|e| cannot_make(to, e))?;
    Ok(recovered)
}

/// Puts all jobs without an end or a lease into the tables of waiting jobs, and nothing else.
fn rebuild_waiting(conn: &Connection) -> rusqlite::Result<()> {
    for name in WAITING {
        conn.execute(&format!("DELETE FROM {name}"), [])?;
    }
    conn.execute(WAIT, [])?;
    conn.execute(EXPIRE, [])?;
    // Moves jobs with a group from the timeline to their group. A job whose concurrency key is full is blocked at its first check.
    schema::move_groups(conn)
}

/// Removes jobs that have ended from the tables of waiting jobs: an audit would let them wait. A record without an end, a lease and an entry may
/// have ended, too. An audit makes it dead.
fn drop_ended_from_waiting(conn: &Connection) -> rusqlite::Result<()> {
    for name in WAITING {
        conn.execute(&format!("DELETE FROM {name} WHERE id IN (SELECT id FROM punctual_ended)"), [])?;
    }
    Ok(())
}

/// Makes a file that only this user can read.
fn make(path: &Path) -> Result<()> {
    private().create_new(true).open(path).map(drop).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => cannot_make(path, e),
    })
}

fn cannot_make(path: &Path, e: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("could not make {}", path.display()))
        .with_hint("name a file in a folder that this user can write")
        .with_source(e)
}

fn exists(path: &Path) -> Error {
    Error::new(ErrorKind::Conflict, format!("could not make {}: it exists", path.display()))
        .with_hint("name another file; one that ends in -pages or -unfinished is left of a recovery that was killed, and can be removed")
}

/// Makes the error for pages that cannot be read: of the disk, or of a damaged header.
fn unreadable(path: &Path, e: io::Error) -> Error {
    let is_damaged = matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
    let (kind, hint) = if is_damaged {
        (ErrorKind::Corrupt, "restore a backup")
    } else {
        (ErrorKind::Unavailable, "look at the disk; the call may be repeated")
    };
    Error::new(kind, format!("could not read the pages of {}", path.display())).with_hint(hint).with_source(e)
}

/// Copies the pages of a file as they are in its last commit. SQLite looks at the header alone. Returns the size of the file;
/// `None` if its log has pages.
fn copy_pages(from: &Path, to: &Path) -> Result<Option<u64>> {
    let read = |e| fault::error("read from", from, e);
    // For reading and writing, since the index of the log may have to be made again.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let damaged = Connection::open_with_flags(from, flags).map_err(read)?;
    damaged.busy_timeout(BUSY_TIMEOUT).map_err(read)?;
    damaged.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(read)?;
    // Then a file that is shorter than its header says is read, too.
    damaged.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, true).map_err(read)?;
    let mut copy = Connection::open(to).map_err(|e| fault::error("open", to, e))?;
    // All at once: otherwise each write of others begins it again.
    let all = -1;
    match Backup::new(&damaged, &mut copy).and_then(|backup| backup.step(all)).map_err(read)? {
        StepResult::Done => {
            let has_frames = log_pages(&damaged).map_or(true, |frames| 0 < frames);
            Ok(if has_frames { None } else { fs::metadata(from).ok().map(|meta| meta.len()) })
        }
        _ => Err(Error::new(ErrorKind::Unavailable, format!("could not read from {}", from.display()))
            .with_hint("another program holds the file locked; end its transaction")),
    }
}

/// A table of the new file.
struct Table {
    name: String,
    /// Its first page in a new file.
    root: u32,
    columns: Vec<Column>,
    tree: Tree,
    /// The column that is the row number.
    number: Option<usize>,
}

struct Column {
    name: String,
    /// As it was declared.
    of: String,
    is_key: bool,
}

impl Column {
    fn fits(&self, value: &Value) -> bool {
        match (value, self.of.as_str()) {
            (Value::Null, _) => !self.is_key,
            (Value::Integer(_), "INTEGER") | (Value::Text(_), "TEXT") | (Value::Blob(_), "BLOB") => true,
            (_, of) => of.is_empty(),
        }
    }
}

impl Table {
    /// Returns whether at least half of these rows fit. A row that was made before columns were added has fewer.
    fn can_own(&self, tree: Tree, rows: &[pages::Row]) -> bool {
        let fitting =
            rows.iter().filter(|row| row.values.len() <= self.columns.len() && self.fits(row)).count();
        tree == self.tree && rows.len() <= 2 * fitting
    }

    /// Returns whether more than half of these rows fit, with all columns.
    fn fits_exactly(&self, tree: Tree, rows: &[pages::Row]) -> bool {
        let fitting =
            rows.iter().filter(|row| row.values.len() == self.columns.len() && self.fits(row)).count();
        tree == self.tree && rows.len() < 2 * fitting
    }

    /// Returns whether the values of a row are of the types of the columns.
    fn fits(&self, row: &pages::Row) -> bool {
        self.columns.iter().zip(&row.values).enumerate().all(|(at, (column, value))| {
            Some(at) == self.number && *value == Value::Null || column.fits(value)
        })
    }

    /// Puts a row into the table. Returns whether it could be.
    fn insert(&self, conn: &Connection, mut row: pages::Row) -> rusqlite::Result<bool> {
        if self.columns.len() < row.values.len() {
            return Ok(false);
        }
        if let (Some(column), Some(number)) = (self.number, row.number)
            && let Some(value) = row.values.get_mut(column)
        {
            *value = Value::Integer(number);
        }
        let columns: Vec<_> =
            self.columns.iter().take(row.values.len()).map(|column| column.name.as_str()).collect();
        let (names, marks) = (columns.join(", "), vec!["?"; columns.len()].join(", "));
        let sql = format!("INSERT OR IGNORE INTO {} ({names}) VALUES ({marks})", self.name);
        match conn.prepare_cached(&sql)?.execute(params_from_iter(&row.values)) {
            Err(e) if matches!(e.sqlite_error_code(), Some(ErrorCode::TypeMismatch | ErrorCode::TooBig)) => {
                Ok(false)
            }
            inserted => inserted.map(|rows| rows == 1),
        }
    }
}

/// Returns the tables of the new file.
fn tables(conn: &Connection) -> rusqlite::Result<Vec<Table>> {
    let mut columns = conn.prepare(COLUMNS)?;
    let mut tables = conn.prepare(TABLES)?;
    let tables = tables.query_map([], |row| {
        let (name, has_no_rows, root): (String, bool, u32) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let column =
            |row: &rusqlite::Row<'_>| Ok(Column { name: row.get(0)?, of: row.get(1)?, is_key: row.get(2)? });
        let columns: Vec<Column> = columns.query_map([&name], column)?.collect::<rusqlite::Result<_>>()?;
        let tree = if has_no_rows { Tree::Keys } else { Tree::Rows };
        let mut keys = columns.iter().enumerate().filter(|(_, column)| column.is_key);
        // SQLite's rule: the only column of the key, if it is an INTEGER.
        let number = match (tree, keys.next(), keys.next()) {
            (Tree::Rows, Some((at, column)), None) if column.of == "INTEGER" => Some(at),
            _ => None,
        };
        Ok(Table { name, root, columns, tree, number })
    })?;
    tables.collect()
}

/// Reads the rows of a page, and how many of them are damaged.
fn rows(pages: &mut Pages, page: &Page) -> io::Result<(Vec<pages::Row>, u64)> {
    let (mut rows, mut lost, mut bytes) = (Vec::new(), 0, 0);
    if page.tree() == Some((Tree::Rows, false)) {
        return Ok((rows, lost));
    }
    let cells = page.cells();
    let mut unread = cells.len() as u64;
    for cell in cells {
        unread -= 1;
        match pages.row(page, cell)? {
            Some(row) => {
                bytes += row.bytes;
                rows.push(row);
            }
            None => lost += 1,
        }
        if PAGE_ROWS_BYTES_MAX < bytes {
            lost += unread;
            break;
        }
    }
    Ok((rows, lost))
}

/// Reads the names and roots of the trees of a file, as far as they are whole. An index has its own name. SQLite's own table has none.
fn roots(pages: &mut Pages) -> io::Result<Vec<(Vec<u8>, u32)>> {
    let mut roots = vec![(Vec::new(), SCHEMA_PAGE)];
    let mut walk = Walk::from(SCHEMA_PAGE, Tree::Rows);
    let mut met = vec![false; pages.last as usize + 1];
    while let Some((_, page)) =
        walk.next(pages, |number| !std::mem::replace(&mut met[number as usize], true))?
    {
        for row in rows(pages, &page)?.0 {
            if let [_, Value::Text(name), _, Value::Integer(root), _] = row.values.as_slice()
                && let Ok(root) = u32::try_from(*root)
                && row.values.len() == SCHEMA_COLUMNS
            {
                roots.push((name.clone(), root));
            }
        }
    }
    Ok(roots)
}

/// A walk through the pages of a tree.
struct Walk {
    todo: Vec<u32>,
    tree: Tree,
    /// Pages that are not there, or of another kind.
    lost: u64,
}

impl Walk {
    fn from(root: u32, tree: Tree) -> Self {
        Self { todo: vec![root], tree, lost: 0 }
    }

    /// Returns the next page. `enters` decides whether a page is read.
    fn next(
        &mut self,
        pages: &mut Pages,
        mut enters: impl FnMut(u32) -> bool,
    ) -> io::Result<Option<(u32, Page)>> {
        while let Some(number) = self.todo.pop() {
            if !pages.has(number) {
                self.lost += 1;
            } else if enters(number) {
                let page = pages.read(number)?;
                if page.tree().is_some_and(|(tree, _)| tree == self.tree) {
                    self.todo.extend(page.children());
                    return Ok(Some((number, page)));
                }
                self.lost += 1;
            }
        }
        Ok(None)
    }
}

/// What a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// No tree leads to it, or its rows do not fit the table whose tree does.
    Nobody,
    /// This one of the tables.
    Table(usize),
    /// An index, or what is not punctual's.
    Other,
}

/// Which page belongs to what.
struct Map {
    /// By page number.
    owners: Vec<Owner>,
    /// Whether each page is free, by page number. `None` if that is not known.
    free: Option<Vec<bool>>,
    lost: u64,
}

impl Map {
    fn of(pages: &mut Pages, tables: &[Table], roots: &[(Vec<u8>, u32)]) -> io::Result<Self> {
        let mut map =
            Self { owners: vec![Owner::Nobody; pages.last as usize + 1], free: pages.free()?, lost: 0 };
        let table_of = |name: &[u8]| tables.iter().position(|table| table.name.as_bytes() == name);
        let (own, others): (Vec<_>, Vec<_>) =
            roots.iter().map(|(name, root)| (table_of(name), *root)).partition(|(table, _)| table.is_some());
        // What is punctual's comes first, so that a wrong page of others takes nothing away.
        for (table, root) in own.into_iter().chain(others) {
            let trees = match table {
                Some(table) => vec![tables[table].tree],
                // The walk ends at its root if it is of the other kind.
                None => vec![Tree::Keys, Tree::Rows],
            };
            for tree in trees {
                let mut walk = Walk::from(root, tree);
                let mut met = vec![false; pages.last as usize + 1];
                let mut reached_free = 0;
                while let Some((number, page)) = walk.next(pages, |number| {
                    let is_free = map.is_known_free(number);
                    reached_free += u64::from(is_free);
                    let is_taken = matches!(map.owners[number as usize], Owner::Table(_));
                    !is_free && !is_taken && !std::mem::replace(&mut met[number as usize], true)
                })? {
                    let (rows, _) = rows(pages, &page)?;
                    map.owners[number as usize] = match table {
                        Some(table) if rows.is_empty() || tables[table].can_own(tree, &rows) => {
                            Owner::Table(table)
                        }
                        Some(_) => Owner::Nobody,
                        None => Owner::Other,
                    };
                }
                map.lost += if table.is_some() { walk.lost + reached_free } else { 0 };
            }
        }
        Ok(map)
    }

    fn is_known_free(&self, number: u32) -> bool {
        self.free.as_ref().is_some_and(|free| free[number as usize])
    }

    fn is_known_in_use(&self, number: u32) -> bool {
        self.free.as_ref().is_some_and(|free| !free[number as usize])
    }
}

/// Returns the only table that most of these rows fit, if there is one.
fn only_fitting<'a>(tables: &'a [Table], page: &Page, rows: &[pages::Row]) -> Option<&'a Table> {
    let (tree, _) = page.tree()?;
    let mut fitting = tables
        .iter()
        .filter(|table| !LIKE_AN_INDEX.contains(&&*table.name) && table.fits_exactly(tree, rows));
    let first = fitting.next();
    if fitting.next().is_some() { None } else { first }
}
