//! A connection to a file. When it is the last one, SQLite copies the log into the database and removes it, by its own index. That must
//! not happen after somebody removed one of the names, because others may have written to another log since; nor while the log has a
//! hole on the disk.

use std::{ops, sync::Arc};

use rusqlite::{Connection, config::DbConfig};

use crate::store::sqlite::engine::{log::Hole, names::Names};

/// A connection, and what decides how it may be closed.
#[derive(Debug)]
pub(crate) struct Conn {
    inner: Connection,
    names: Arc<Names>,
    hole: Arc<Hole>,
}

impl Conn {
    pub(crate) const fn new(inner: Connection, names: Arc<Names>, hole: Arc<Hole>) -> Self {
        Self { inner, names, hole }
    }
}

impl ops::Deref for Conn {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.inner
    }
}

impl ops::DerefMut for Conn {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.inner
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if self.names.check_in_place().is_err() || self.hole.is_there() || self.hole.is_in_database() {
            // Whoever opens the file next recovers what is in the log.
            let _ = self.inner.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}
