//! The protocol of SQS, as SDKs speak it, against the semantics that AWS documents and against hostile callers.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

#[path = "sqs/dead.rs"]
mod dead;
#[path = "sqs/fifo.rs"]
mod fifo;
#[path = "sqs/messages.rs"]
mod messages;
#[path = "sqs/purges.rs"]
mod purges;
#[path = "sqs/queues.rs"]
mod queues;
#[path = "sqs/rights.rs"]
mod rights;
#[path = "sqs/signatures.rs"]
mod signatures;
#[path = "sqs/site.rs"]
mod site;
