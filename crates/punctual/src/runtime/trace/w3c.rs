//! Trace contexts in headers, in the format of W3C Trace Context: `traceparent` and `tracestate`.
//!
//! The propagator for this format is part of the SDK. A library depends on the API only.

use std::{collections::BTreeMap, str::FromStr};

use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};

use crate::core::{
    job::NewJob,
    limits::HEADERS_BYTES_MAX,
    topic::{PUBLICATION, TOPICS_QUEUE},
};

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";
/// The longest `tracestate` that is passed on, in bytes.
const STATE_BYTES_MAX: usize = 512;

/// The header of a job that names the publication that it comes from: its name and an id.
const PUBLICATION_BYTES: usize = PUBLICATION.len() + 36;

/// Returns the trace context in headers, which `get` returns by name; `None` if there is none or if it is malformed.
pub(super) fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<SpanContext> {
    let mut parts = get(PARENT)?.trim().split('-');
    let mut hex = |digits: usize| {
        let part = parts.next()?;
        let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        (part.len() == digits && part.bytes().all(is_hex)).then_some(part)
    };
    let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    // Later versions can have further parts.
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let state = get(STATE).and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context = SpanContext::new(trace, span, flags, true, state);
    context.is_valid().then_some(context)
}

/// Returns the trace context in the headers of a job.
pub(super) fn of(headers: &BTreeMap<String, String>) -> Option<SpanContext> {
    // Most jobs have no headers.
    if headers.is_empty() { None } else { read(|name| headers.get(name).map(String::as_str)) }
}

/// Returns whether headers have a trace context of their own, malformed or not.
pub(super) fn is_in(headers: &BTreeMap<String, String>) -> bool {
    headers.contains_key(PARENT) || headers.contains_key(STATE)
}

/// Returns a context as headers; none if it is invalid.
fn write(context: &SpanContext) -> Vec<(&'static str, String)> {
    if !context.is_valid() {
        return Vec::new();
    }
    let flags = context.trace_flags() & TraceFlags::SAMPLED;
    let parent = format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), flags);
    let state = context.trace_state().header();
    // Also an environment variable can hold it.
    let is_plain = state.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let state = (is_plain && (1..=STATE_BYTES_MAX).contains(&state.len())).then_some((STATE, state));
    [(PARENT, parent)].into_iter().chain(state).collect()
}

/// Adds a context to jobs that have none. Headers that do not fit are left out: no job is refused for them.
pub(super) fn add(context: &SpanContext, jobs: &mut [NewJob]) {
    let carried = write(context);
    if carried.is_empty() {
        return;
    }
    for job in jobs.iter_mut().filter(|job| !is_in(&job.headers)) {
        let mut bytes: usize = job.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if job.queue == TOPICS_QUEUE {
            // Each job that it becomes gets a header that names it.
            bytes += PUBLICATION_BYTES;
        }
        for (name, value) in &carried {
            bytes += name.len() + value.len();
            if HEADERS_BYTES_MAX < bytes {
                break;
            }
            job.headers.insert((*name).to_owned(), value.clone());
        }
    }
}

/// Adds the current trace context to the headers of jobs that have none.
pub fn inject(jobs: &mut [NewJob]) {
    Context::map_current(|current| add(current.span().span_context(), jobs));
}

/// Returns the current trace context as the headers `traceparent` and `tracestate`; none if there is no trace.
pub fn headers() -> Vec<(&'static str, String)> {
    Context::map_current(|current| write(current.span().span_context()))
}

/// Returns a context with the remote span that headers name, which `get` returns by name; an empty context if there is
/// none.
pub fn parent<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Context {
    read(get).map_or_else(Context::new, |remote| Context::new().with_remote_span_context(remote))
}

#[cfg(test)]
mod tests {
    use opentelemetry::propagation::TextMapPropagator as _;
    use opentelemetry_sdk::propagation::TraceContextPropagator;

    use super::*;
    use crate::core::{id::IdMaker, job::Payload};

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn of_text(text: &str, state: &str) -> Option<SpanContext> {
        read(|name| Some(if name == PARENT { text } else { state }))
    }

    #[test]
    fn the_propagator_of_the_sdk_reads_and_writes_the_same() {
        let sdk = TraceContextPropagator::new();
        for (text, state) in [
            (format!("00-{TRACE}-00f067aa0ba902b7-01"), "foo=bar"),
            (format!("00-{TRACE}-00f067aa0ba902b7-00"), ""),
            (format!("cc-{TRACE}-00f067aa0ba902b7-03-what-later-versions-add"), "a=1,b=2"),
        ] {
            let carrier = std::collections::HashMap::from([
                (PARENT.to_owned(), text.clone()),
                (STATE.to_owned(), state.to_owned()),
            ]);
            let theirs = sdk.extract_with_context(&Context::new(), &carrier).span().span_context().clone();
            assert_eq!(of_text(&text, state).as_ref(), Some(&theirs), "{text}");
            let mut injected = std::collections::HashMap::new();
            sdk.inject_context(&Context::new().with_remote_span_context(theirs.clone()), &mut injected);
            // The SDK writes a state that is empty.
            injected.retain(|_, value| !value.is_empty());
            let ours = write(&theirs).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            assert_eq!(injected, ours, "{text}");
        }
    }

    #[test]
    fn a_malformed_context_is_none() {
        for text in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-+{}-00f067aa0ba902b7-01", &TRACE[1..]),
        ] {
            assert_eq!(of_text(&text, ""), None, "{text}");
        }
    }

    #[test]
    fn headers_that_do_not_fit_are_left_out() {
        let context = of_text(&format!("00-{TRACE}-00f067aa0ba902b7-01"), "foo=bar").unwrap();
        let (parent, state) = (PARENT.len() + 55, STATE.len() + "foo=bar".len());
        for (room, names) in [
            (parent - 1, vec!["x"]),
            (parent, vec![PARENT, "x"]),
            (parent + state - 1, vec![PARENT, "x"]),
            (parent + state, vec![PARENT, STATE, "x"]),
        ] {
            // The jobs of a publication need room for its name.
            for (queue, more) in [("q", 0), (TOPICS_QUEUE, PUBLICATION.len() + 36)] {
                let mut job = NewJob::new(IdMaker::default().make(1, 0, 1), "k", queue, Payload::json("1"));
                job.headers.insert("x".to_owned(), "-".repeat(HEADERS_BYTES_MAX - room - more - 1));
                add(&context, std::slice::from_mut(&mut job));
                assert_eq!(
                    job.headers.keys().map(String::as_str).collect::<Vec<_>>(),
                    names,
                    "{queue} {room}"
                );
            }
        }
    }
}
