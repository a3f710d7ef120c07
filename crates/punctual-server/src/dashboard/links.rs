//! The addresses of the pages, each of which begins with the base path.

use form_urlencoded::Serializer;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use punctual::JobId;

/// What is escaped in one step of a path.
const STEP: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Makes addresses under a base path.
#[derive(Clone, Debug)]
pub(super) struct Links {
    /// Empty, or a path that begins with a slash and does not end with one.
    base: String,
}

impl Links {
    pub(super) fn new(base: &str) -> Self {
        let base = base.trim_matches('/');
        Self { base: if base.is_empty() { String::new() } else { format!("/{base}") } }
    }

    pub(super) fn overview(&self) -> String {
        if self.base.is_empty() { "/".to_owned() } else { self.base.clone() }
    }

    /// A page that needs no argument, such as `queues`.
    pub(super) fn to(&self, page: &str) -> String {
        format!("{}/{page}", self.base)
    }

    /// The same page with a query. Empty values are left out.
    pub(super) fn query(&self, page: &str, pairs: &[(&str, &str)]) -> String {
        let mut query = Serializer::new(String::new());
        query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
        let query = query.finish();
        if query.is_empty() { self.to(page) } else { format!("{}?{query}", self.to(page)) }
    }

    /// The jobs that match a filter.
    pub(super) fn jobs(&self, filter: &str) -> String {
        self.query("jobs", &[("filter", filter)])
    }

    pub(super) fn job(&self, id: JobId) -> String {
        self.to(&format!("jobs/{id}"))
    }

    pub(super) fn queue(&self, name: &str) -> String {
        self.to(&format!("queues/{}", utf8_percent_encode(name, STEP)))
    }

    pub(super) fn schedule(&self, name: &str) -> String {
        self.to(&format!("schedules/{}", utf8_percent_encode(name, STEP)))
    }

    /// The queues after a name.
    pub(super) fn queues_after(&self, name: &str) -> String {
        self.query("queues", &[("after", name)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_begins_with_the_base_path() {
        for (base, overview, queue) in [
            ("", "/", "/queues/a%2Fb%20c"),
            ("/", "/", "/queues/a%2Fb%20c"),
            ("x/y/", "/x/y", "/x/y/queues/a%2Fb%20c"),
        ] {
            let links = Links::new(base);
            assert_eq!((links.overview(), links.queue("a/b c")), (overview.to_owned(), queue.to_owned()));
        }
    }

    #[test]
    fn values_in_a_query_are_escaped() {
        let links = Links::new("");
        assert_eq!(links.jobs("state:dead error:\"a&b\""), "/jobs?filter=state%3Adead+error%3A%22a%26b%22");
        assert_eq!(links.jobs(""), "/jobs");
    }
}
