//! Everything that uses the driver: the file and its lock, connections, transactions and the schema.

pub(crate) mod ballast;
pub(crate) mod connection;
pub(crate) mod fault;
pub(crate) mod file;
pub(crate) mod file_lock;
pub(crate) mod log;
pub(crate) mod names;
pub(crate) mod place;
pub(crate) mod reader;
pub(crate) mod row_number;
pub(crate) mod schema;
pub(crate) mod snapshot;
pub(crate) mod sql;
pub(crate) mod thread;
pub(crate) mod tx;
pub(crate) mod users;
pub(crate) mod writer;
