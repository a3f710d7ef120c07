//! Finds a statement in its `.sql` file at compile time: a name that is not there does not build.

/// The statement behind the line `-- name: <name>` of `file`, up to the first semicolon at the end of a line.
pub(crate) const fn named(file: &'static str, name: &str) -> &'static str {
    let (text, name) = (file.as_bytes(), name.as_bytes());
    let mut at = 0;
    while at < text.len() {
        if let Some(start) = after_name(text, at, name) {
            let mut end = start;
            while text[end] != b';' || text[end + 1] != b'\n' {
                end += 1;
            }
            return file.split_at(end).0.split_at(start).1;
        }
        at += 1;
    }
    panic!("the file has no statement of this name");
}

/// The byte behind `-- name: <name>\n`, where that line starts at `at`.
const fn after_name(text: &[u8], at: usize, name: &[u8]) -> Option<usize> {
    const MARK: &[u8] = b"-- name: ";
    let end = at + MARK.len() + name.len();
    if text.len() <= end || text[end] != b'\n' {
        return None;
    }
    let mut i = 0;
    while at + i < end {
        let wanted = if i < MARK.len() { MARK[i] } else { name[i - MARK.len()] };
        if text[at + i] != wanted {
            return None;
        }
        i += 1;
    }
    Some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn a_statement_ends_at_its_semicolon_and_names_are_whole() {
        const FILE: &str = "-- head\n\n-- name: one_more\nSELECT 2;\n\n-- name: one\nSELECT\n  1;\n";
        assert_eq!(named(FILE, "one"), "SELECT\n  1");
        assert_eq!(named(FILE, "one_more"), "SELECT 2");
    }
}
