//! Operations as documents of the store.

use punctual::{
    Client, Error, ErrorKind, Result, Timestamp,
    limits::BATCH_MAX,
    store::{Doc, DocOp, DocReply, Precondition},
};

use super::Operation;

/// The prefix of the keys of their documents.
pub(crate) const PREFIX: &str = "operation/";
/// Digits of an id: 12 of the time when it was ordered, so that ids are in this order, and 8 by chance.
const ID_DIGITS: usize = 20;

/// What became of a change.
#[derive(Debug)]
pub(super) enum Put {
    /// It was made, and the document has this version.
    Is(u64),
    /// The document had another version, and was not changed. `None`: it does not exist.
    Conflict(Option<Box<(Operation, u64)>>),
}

/// Makes an id.
pub(super) fn id(now: Timestamp, random: u32) -> String {
    format!("{:012x}{random:08x}", now.as_ms())
}

pub(super) fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn key(id: &str) -> String {
    format!("{PREFIX}{id}")
}

fn read(doc: &Doc) -> Result<(Operation, u64)> {
    let operation = serde_json::from_slice(&doc.value).map_err(|e| {
        Error::new(ErrorKind::Corrupt, format!("the document {} is not an operation", doc.key))
            .with_hint("use the newest punctual, or remove the document")
            .with_source(e)
    })?;
    Ok((operation, doc.version))
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store gave an answer of another form")
}

pub(super) async fn get(client: &Client, id: &str) -> Result<Option<(Operation, u64)>> {
    if !is_id(id) {
        return Ok(None);
    }
    match client.store().doc(&DocOp::Get { key: key(id) }).await? {
        DocReply::Is(doc) => doc.as_ref().map(read).transpose(),
        DocReply::Conflict(_) | DocReply::Page { .. } => Err(unexpected()),
    }
}

pub(super) async fn put(client: &Client, of: &Operation, precondition: Precondition) -> Result<Put> {
    let value = serde_json::to_vec(of)
        .map_err(|e| Error::new(ErrorKind::Corrupt, "could not encode the operation").with_source(e))?;
    match client.store().doc(&DocOp::Put { key: key(&of.id), precondition, value }).await? {
        DocReply::Is(Some(doc)) => Ok(Put::Is(doc.version)),
        DocReply::Conflict(doc) => Ok(Put::Conflict(doc.as_ref().map(read).transpose()?.map(Box::new))),
        DocReply::Is(None) | DocReply::Page { .. } => Err(unexpected()),
    }
}

pub(super) async fn remove(client: &Client, id: &str) -> Result<()> {
    let remove = DocOp::Remove { key: key(id), precondition: Precondition::Always };
    client.store().doc(&remove).await.map(drop)
}

/// Returns all operations, the newest first. One that cannot be read, such as one of a newer punctual, is left out.
pub(super) async fn all(client: &Client) -> Result<Vec<Operation>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let list = DocOp::List { prefix: PREFIX.to_owned(), after, limit: BATCH_MAX };
        let DocReply::Page { docs, more } = client.store().doc(&list).await? else {
            return Err(unexpected());
        };
        for doc in &docs {
            match read(doc) {
                Ok((operation, _)) => all.push(operation),
                Err(error) => tracing::debug!(target: "punctual", %error, "an operation is left out"),
            }
        }
        after = docs.into_iter().next_back().filter(|_| more).map(|doc| doc.key);
        if after.is_none() {
            all.reverse();
            return Ok(all);
        }
    }
}
