//! Names of the semantic conventions of OpenTelemetry for messaging, which are in development, and names of our own.

/// The name of the instrumentation, and the value of [`SYSTEM`].
pub(super) const PUNCTUAL: &str = "punctual";

pub(super) const SYSTEM: &str = "messaging.system";
pub(super) const OPERATION_NAME: &str = "messaging.operation.name";
pub(super) const OPERATION_TYPE: &str = "messaging.operation.type";
/// The queue. Only if all jobs of the span are in the same one.
pub(super) const DESTINATION: &str = "messaging.destination.name";
/// The id of the job. Only if the span is of one job.
pub(super) const MESSAGE_ID: &str = "messaging.message.id";
/// The number of jobs, if there are several.
pub(super) const MESSAGE_COUNT: &str = "messaging.batch.message_count";
pub(super) const ERROR_TYPE: &str = "error.type";
/// The value of [`ERROR_TYPE`] for errors of handlers, which are texts.
pub(super) const OTHER: &str = "_OTHER";

// Operations: each is the name, the type, and the begin of the span's name.
pub(super) const SEND: &str = "send";
pub(super) const RECEIVE: &str = "receive";
pub(super) const PROCESS: &str = "process";
pub(super) const SETTLE: &str = "settle";

pub(super) const KIND: &str = "punctual.kind";
pub(super) const ATTEMPT: &str = "punctual.attempt";
pub(super) const VERDICT: &str = "punctual.verdict";
/// How late the run started, in milliseconds.
pub(super) const LATENESS: &str = "punctual.lateness_ms";
