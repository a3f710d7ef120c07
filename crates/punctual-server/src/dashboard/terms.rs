//! The terms of a filter as text, so that a link can change one and keep the others as they were typed.

/// Splits a filter into its terms. Spaces in quotes belong to a term.
pub(super) fn split(filter: &str) -> Vec<&str> {
    let (mut terms, mut start, mut quoted, mut escaped) = (Vec::new(), None, false, false);
    for (at, c) in filter.char_indices() {
        if c.is_whitespace() && !quoted {
            terms.extend(start.take().map(|start| &filter[start..at]));
            continue;
        }
        start.get_or_insert(at);
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
    }
    terms.extend(start.map(|start| &filter[start..]));
    terms
}

/// Returns the terms that do not select a state.
pub(super) fn without_state(filter: &str) -> Vec<&str> {
    let is_state = |term: &str| term.strip_prefix('-').unwrap_or(term).starts_with("state:");
    split(filter).into_iter().filter(|term| !is_state(term)).collect()
}

/// Returns the one state that a filter selects by name.
pub(super) fn state(filter: &str) -> Option<&str> {
    let mut states = split(filter).into_iter().filter_map(|term| term.strip_prefix("state:"));
    states.next().filter(|_| states.next().is_none())
}

/// Writes a term whose value is exactly this text.
pub(crate) fn exact(field: &str, value: &str) -> String {
    format!("{field}:{}", quoted(value))
}

/// Writes a term whose value is exactly one of these texts.
pub(super) fn any_of(field: &str, values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
    format!("{field}:{}", values.join(","))
}

/// Writes a value, in quotes if need be.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:/@$".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        value.to_owned()
    } else {
        format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

#[cfg(test)]
mod tests {
    use punctual::job::Filter;

    use super::*;

    #[test]
    fn a_term_ends_at_a_space_outside_quotes() {
        let filter = r#" state:dead  error:"a \" b" -state:done queue:mail"#;
        assert_eq!(split(filter), ["state:dead", r#"error:"a \" b""#, "-state:done", "queue:mail"]);
        assert_eq!(without_state(filter), [r#"error:"a \" b""#, "queue:mail"]);
        assert_eq!((state(filter), state("queue:a")), (Some("dead"), None));
    }

    #[test]
    fn a_term_of_any_text_can_be_parsed() {
        for value in ["mail", "a b", "\"", "\\", "*", "a,b", "", "<script>", "-"] {
            let filter = Filter::parse(&exact("queue", value)).unwrap();
            assert_eq!(filter.queues(), Some(vec![value.to_owned()]), "{value}");
        }
        let all = ["mail", "a b", "\"x,y\"", "*"].map(str::to_owned);
        assert_eq!(Filter::parse(&any_of("queue", &all)).unwrap().queues(), Some(all.to_vec()));
    }
}
