//! The user that the guide recommends, as it stands there: so the guide can't say less than is needed.

/// As the guide writes them.
pub(crate) const USER: &str = "punctual";
pub(crate) const PASSWORD: &str = "secret";

const GUIDE: &str = include_str!("../../docs/guide/5-redis.md");

/// The line under a heading, for the prefixes of tests.
pub(crate) fn line(heading: &str) -> String {
    let mut lines = GUIDE.lines().skip_while(|line| line.strip_prefix("# ") != Some(heading));
    let line = lines.nth(1).unwrap_or_else(|| panic!("the guide has no line {heading:?}"));
    assert!(line.starts_with(&format!("ACL SETUSER {USER} ")), "{line}");
    line.replace("~pq:*", "~t*:*")
}
