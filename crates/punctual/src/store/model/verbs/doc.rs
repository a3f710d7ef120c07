//! Documents: values with versions.

use crate::{
    core::{
        error::Result,
        limits::{BATCH_BYTES_MAX, DOCS_MAX},
    },
    store::{Doc, DocOp, DocReply, Precondition, model::Model, too_many},
};

impl Model {
    /// [`Store::doc`](crate::store::Store::doc).
    pub fn doc(&mut self, op: &DocOp) -> Result<DocReply> {
        op.check()?;
        match op {
            DocOp::Get { key } => Ok(DocReply::Is(self.docs.get(key).cloned())),
            DocOp::List { prefix, after, limit } => Ok(self.list_docs(prefix, after.as_deref(), *limit)),
            DocOp::Put { key, precondition, value } => self.change_doc(key, *precondition, Some(value)),
            DocOp::Remove { key, precondition } => self.change_doc(key, *precondition, None),
        }
    }

    fn change_doc(
        &mut self,
        key: &str,
        precondition: Precondition,
        value: Option<&Vec<u8>>,
    ) -> Result<DocReply> {
        let is = self.docs.get(key).cloned();
        if is.as_ref().map(|doc| &doc.value) == value {
            return Ok(DocReply::Is(is));
        }
        if !precondition.allows(is.as_ref().map(|doc| doc.version)) {
            return Ok(DocReply::Conflict(is));
        }
        let Some(value) = value else {
            self.docs.remove(key);
            return Ok(DocReply::Is(None));
        };
        if is.is_none() && DOCS_MAX <= self.docs.len() as u64 {
            return Err(too_many());
        }
        self.doc_version += 1;
        let doc = Doc { key: key.to_owned(), version: self.doc_version, value: value.clone() };
        self.docs.insert(key.to_owned(), doc.clone());
        Ok(DocReply::Is(Some(doc)))
    }

    fn list_docs(&self, prefix: &str, after: Option<&str>, limit: usize) -> DocReply {
        let mut left = self
            .docs
            .values()
            .filter(|doc| doc.key.starts_with(prefix) && after < Some(doc.key.as_str()))
            .peekable();
        let (mut docs, mut bytes) = (Vec::new(), 0);
        while let Some(doc) = left.peek().filter(|doc| {
            docs.len() < limit && (docs.is_empty() || bytes + doc.value.len() <= BATCH_BYTES_MAX)
        }) {
            bytes += doc.value.len();
            docs.push(Doc::clone(doc));
            left.next();
        }
        DocReply::Page { docs, more: left.peek().is_some() }
    }
}
