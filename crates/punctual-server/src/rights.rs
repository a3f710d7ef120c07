//! What each route of the server needs. A route that is not here needs an admin.

use axum::http::Method;

use crate::gate::{Needs, Right};

/// Returns what the route of a method and a path needs.
pub(crate) fn of(method: &Method, path: &str) -> Option<Needs> {
    if let Some(path) = path.strip_prefix("/api/v1/") {
        return of_api(method, path);
    }
    match (method, path) {
        // What each tool needs is checked when it is called.
        (&Method::POST | &Method::GET | &Method::DELETE, "/mcp") => Some(Right::Read.by_queue()),
        (&Method::GET, "/healthz" | "/readyz" | "/style.css" | "/live.js" | "/login")
        | (&Method::POST, "/login" | "/logout") => Some(Needs::PUBLIC),
        _ => of_page(method, path),
    }
}

/// Returns what a page of the dashboard or one of its forms needs.
fn of_page(method: &Method, path: &str) -> Option<Needs> {
    let parts: Vec<&str> = path.trim_start_matches('/').splitn(4, '/').collect();
    match (method, parts.as_slice()) {
        (&Method::GET | &Method::POST, ["jobs", _, "edit"])
        | (
            &Method::POST,
            // A form, or its filter, says which queues.
            ["jobs", "confirm" | "act" | "matching"]
            | ["operations"]
            | ["operations", _, "cancel"]
            | ["jobs", _, "duplicate"]
            | ["queues", _, "pause" | "resume"],
        ) => Some(Right::Operate.by_queue()),
        (&Method::POST, ["schedules", _, "fire"] | ["workers", _, "quiet" | "resume" | "stop"]) => {
            Some(Right::Operate.in_store())
        }
        (&Method::GET, ["queues", _, "settings"]) => None,
        // What a caller for some queues may see. It is sent from the overview to its jobs.
        (&Method::GET, ["" | "jobs"] | ["jobs" | "queues" | "operations", _]) => Some(Right::Read.by_queue()),
        // The other pages, and metrics.
        (&Method::GET, _) => Some(Right::Read.in_store()),
        _ => None,
    }
}

fn of_api(method: &Method, path: &str) -> Option<Needs> {
    let parts: Vec<&str> = path.splitn(4, '/').collect();
    match (method, parts.as_slice()) {
        (&Method::GET, ["openapi.json"]) => Some(Needs::PUBLIC),
        (
            &Method::GET,
            ["jobs" | "schedules" | "topics" | "stats" | "failures" | "events" | "operations" | "activity"]
            | ["schedules" | "topics", _],
        ) => Some(Right::Read.in_store()),
        (&Method::GET, ["jobs" | "queues" | "operations", _] | ["jobs", _, "why"] | ["workers"]) => {
            Some(Right::Read.by_queue())
        }
        (
            &Method::POST,
            ["jobs" | "operations"]
            | ["jobs", _, "cancel" | "retry" | "run-now"]
            | ["operations", _, "cancel"]
            | ["queues", _, "pause" | "resume"]
            | ["workers", _, "quiet" | "resume" | "stop"],
        )
        | (&Method::PATCH | &Method::DELETE, ["jobs", _]) => Some(Right::Operate.by_queue()),
        (&Method::PATCH, ["queues", _]) | (&Method::POST, ["queues", _, "purge"]) => {
            Some(Right::Admin.by_queue())
        }
        (&Method::POST, ["schedules", _, "fire"] | ["topics", _, "publish"]) => {
            Some(Right::Operate.in_store())
        }
        (&Method::PUT, ["schedules", _])
        | (&Method::DELETE, ["schedules" | "topics", _])
        | (
            &Method::POST,
            ["schedules", _, "pause" | "resume"] | ["topics", _, "subscribe" | "unsubscribe"],
        ) => Some(Right::Admin.in_store()),
        // Some names are of a call and of a resource. Both need the same.
        (_, [call]) => of_call(call),
        _ => None,
    }
}

/// Returns the least that a call needs. What depends on its body is checked with the body (`api/scope.rs`).
fn of_call(call: &str) -> Option<Needs> {
    Some(match call {
        "store" | "identity" | "now" | "count" | "queue" | "wait" | "get" | "holder" | "doc" => {
            Right::Read.by_queue()
        }
        "list" | "upcoming" | "queues" | "tool" | "audit" | "doctor" => Right::Read.in_store(),
        // A sweep says nothing of jobs, and every worker makes some.
        "enqueue" | "reserve" | "extend" | "settle" | "take" | "sweep" => Right::Operate.by_queue(),
        "act" => Right::Operate.in_store(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_nobody_listed_is_for_admins() {
        assert_eq!(of(&Method::POST, "/queues/mail/purge"), None);
        assert_eq!(of(&Method::POST, "/anything"), None);
        assert_eq!(of(&Method::POST, "/schedules/mail/pause"), None);
        assert_eq!(of(&Method::POST, "/queues/mail/settings"), None);
        assert_eq!(of(&Method::POST, "/queues/mail/x/pause"), None);
        assert_eq!(of(&Method::DELETE, "/"), None);
        assert_eq!(of(&Method::POST, "/api/v1/anything"), None);
        assert_eq!(of(&Method::GET, "/metrics"), Some(Right::Read.in_store()));
    }
}
