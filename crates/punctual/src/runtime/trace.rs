//! Spans of enqueues, runs and calls to the store for OpenTelemetry (feature `otel`).
//!
//! Spans go to the global tracer provider of the program. Without one, and without the feature, nothing is recorded.
//! The client and the worker call the same three types in both cases: `trace/spans.rs` has them with the feature,
//! `trace/nothing.rs` without.

#[cfg(feature = "otel")]
mod names;
#[cfg(not(feature = "otel"))]
mod nothing;
#[cfg(feature = "otel")]
mod spans;
#[cfg(feature = "otel")]
mod w3c;

#[cfg(all(feature = "cron", not(feature = "otel")))]
pub(crate) use self::nothing::detached;
#[cfg(not(feature = "otel"))]
pub(crate) use self::nothing::{Calling, Running, Sending};
#[cfg(all(feature = "cron", feature = "otel"))]
pub(crate) use self::spans::detached;
#[cfg(feature = "otel")]
pub(crate) use self::spans::{Calling, Running, Sending};
#[cfg(feature = "otel")]
pub use self::w3c::{headers, inject, parent};
