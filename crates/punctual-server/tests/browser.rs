//! The dashboard in a real browser. Where there is none, the tests say so, and in CI they fail.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

#[path = "browser/accessible.rs"]
mod accessible;
#[path = "browser/buttons.rs"]
mod buttons;
#[path = "dashboard/chromium.rs"]
mod chromium;
#[path = "browser/live.rs"]
mod live;
#[path = "browser/served.rs"]
mod served;
#[expect(dead_code, reason = "the tests of the dashboard use the rest")]
#[path = "dashboard/site.rs"]
mod site;
#[path = "browser/texts.rs"]
mod texts;
