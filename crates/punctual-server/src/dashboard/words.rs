//! A filter in words, so that people can check what they are about to do.

use super::terms;

/// Signs of comparisons, the longer ones first.
const SIGNS: [(&str, &str); 4] =
    [("<=", "at most"), (">=", "at least"), ("<", "less than"), (">", "more than")];

/// Returns each term of a filter as a clause about a job.
pub(super) fn clauses(filter: &str) -> Vec<String> {
    terms::split(filter).into_iter().map(clause).collect()
}

fn clause(term: &str) -> String {
    let (is_not, term) = term.strip_prefix('-').map_or((false, term), |rest| (true, rest));
    let (field, values) = term.split_once(':').unwrap_or((term, ""));
    let (is, has) = if is_not { ("is not", "does not have") } else { ("is", "has") };
    let any = |of: fn(&str) -> String| values_of(values).into_iter().map(of).collect::<Vec<_>>().join(" or ");
    match field {
        "tag" => format!("{has} the tag {}", any(str::to_owned)),
        "error" if is_not => format!("the last error does not contain {}", any(str::to_owned)),
        "error" => format!("the last error contains {}", any(str::to_owned)),
        "due" => format!("{is} due {}", any(ahead)),
        "created" | "failed" | "finished" => format!("{is} {field} {}", any(ago)),
        _ => format!("{field} {is} {}", any(compared)),
    }
}

/// Splits the values of a term. Commas in quotes belong to a value.
fn values_of(text: &str) -> Vec<&str> {
    let (mut values, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                values.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    values.push(&text[start..]);
    values
}

fn compared(value: &str) -> String {
    let found = SIGNS.into_iter().find_map(|(sign, word)| Some((word, value.strip_prefix(sign)?)));
    found.map_or_else(|| value.to_owned(), |(word, rest)| format!("{word} {rest}"))
}

fn ago(value: &str) -> String {
    format!("{} ago", compared(value))
}

/// A distance of a due time, which can be in the past.
fn ahead(value: &str) -> String {
    match value.split_once('-') {
        // What is due before a time in the past is overdue by more.
        Some(("<" | "<=", rest)) => format!("and overdue by more than {rest}"),
        Some((_, rest)) => format!("later than {rest} ago"),
        None => format!("in {}", compared(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_term_becomes_a_clause() {
        for (filter, words) in [
            ("state:dead,retrying", "state is dead or retrying"),
            ("-queue:mail", "queue is not mail"),
            (r#"error:"a, b",421"#, r#"the last error contains "a, b" or 421"#),
            ("-tag:vip", "does not have the tag vip"),
            ("failed:<1h", "is failed less than 1h ago"),
            ("attempt:>=3", "attempt is at least 3"),
            ("due:<10m", "is due in less than 10m"),
            ("due:<-5m", "is due and overdue by more than 5m"),
            ("payload.user.id:42", "payload.user.id is 42"),
        ] {
            assert_eq!(clauses(filter), [words]);
        }
        assert_eq!(clauses("kind:a state:dead").len(), 2);
    }
}
