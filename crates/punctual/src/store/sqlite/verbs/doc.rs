//! `doc`: documents, with one row each.

use rusqlite::{OptionalExtension, params};

use crate::{
    core::limits::{BATCH_BYTES_MAX, DOCS_MAX},
    store::{
        Doc, DocOp, DocReply, Precondition,
        sqlite::engine::{fault::Step, sql::named, tx::Tx},
        too_many,
    },
};

const FILE: &str = include_str!("../sql/doc.sql");
const GET: &str = named(FILE, "get");
const BEHIND: &str = named(FILE, "behind");
const FROM: &str = named(FILE, "from");
const PUT: &str = named(FILE, "put");
const REMOVE: &str = named(FILE, "remove");
const DOCS: &str = named(FILE, "docs");
const PUT_DOCS: &str = named(FILE, "put_docs");

/// Does one step.
pub(crate) fn doc(tx: &Tx<'_>, op: &DocOp) -> Step<DocReply> {
    match op {
        DocOp::Get { key } => Ok(DocReply::Is(get(tx, key)?)),
        DocOp::List { prefix, after, limit } => list(tx, prefix, after.as_deref(), *limit),
        DocOp::Put { key, precondition, value } => change(tx, key, *precondition, Some(value)),
        DocOp::Remove { key, precondition } => change(tx, key, *precondition, None),
    }
}

fn get(tx: &Tx<'_>, key: &str) -> Step<Option<Doc>> {
    let mut stmt = tx.conn.prepare_cached(GET)?;
    let doc = stmt.query_row([key], |row| {
        Ok(Doc { key: key.to_owned(), version: row.get::<_, i64>(0)?.cast_unsigned(), value: row.get(1)? })
    });
    Ok(doc.optional()?)
}

fn change(tx: &Tx<'_>, key: &str, precondition: Precondition, value: Option<&Vec<u8>>) -> Step<DocReply> {
    let is = get(tx, key)?;
    if is.as_ref().map(|doc| &doc.value) == value {
        return Ok(DocReply::Is(is));
    }
    if !precondition.allows(is.as_ref().map(|doc| doc.version)) {
        return Ok(DocReply::Conflict(is));
    }
    let mut stmt = tx.conn.prepare_cached(DOCS)?;
    let (count, version): (i64, i64) = stmt.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut put_docs = tx.conn.prepare_cached(PUT_DOCS)?;
    let Some(value) = value else {
        tx.conn.prepare_cached(REMOVE)?.execute([key])?;
        put_docs.execute(params![count - 1, version])?;
        return Ok(DocReply::Is(None));
    };
    if is.is_none() && DOCS_MAX <= count.cast_unsigned() {
        return Err(too_many().into());
    }
    let version = version + 1;
    tx.conn.prepare_cached(PUT)?.execute(params![key, version, value])?;
    put_docs.execute(params![count + i64::from(is.is_none()), version])?;
    Ok(DocReply::Is(Some(Doc {
        key: key.to_owned(),
        version: version.cast_unsigned(),
        value: value.clone(),
    })))
}

fn list(tx: &Tx<'_>, prefix: &str, after: Option<&str>, limit: usize) -> Step<DocReply> {
    // A key before the prefix starts at the first document.
    let (sql, from) = match after.filter(|after| prefix <= *after) {
        Some(after) => (BEHIND, after),
        None => (FROM, prefix),
    };
    let mut stmt = tx.conn.prepare_cached(sql)?;
    let mut rows = stmt.query([from])?;
    let (mut docs, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let key: String = row.get(0)?;
        if !key.starts_with(prefix) {
            break;
        }
        let value: Vec<u8> = row.get(2)?;
        bytes += value.len();
        if docs.len() == limit || !docs.is_empty() && BATCH_BYTES_MAX < bytes {
            return Ok(DocReply::Page { docs, more: true });
        }
        docs.push(Doc { key, version: row.get::<_, i64>(1)?.cast_unsigned(), value });
    }
    Ok(DocReply::Page { docs, more: false })
}
