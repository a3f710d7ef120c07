//! "Did you mean": the known word nearest to a mistyped one.

/// Longest word that is compared; longer ones are no slips of the hand.
const CHARS_MAX: usize = 40;

/// The word of `known` that `word` was probably meant to be.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(CHARS_MAX + 1).flat_map(char::to_lowercase).collect();
    if CHARS_MAX < word.len() {
        return None;
    }
    let near = (word.len() / 3).clamp(1, 3);
    let distances = known.into_iter().map(|candidate| (distance(&word, candidate), candidate));
    distances.filter(|(d, _)| *d <= near).min_by_key(|(d, _)| *d).map(|(_, candidate)| candidate)
}

/// Insertions, deletions, changes and swaps of neighbours that lead from one to the other.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if 0 < i && 0 < j && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_left_alone() {
        let known = ["kind", "queue", "priority", "payload"];
        assert_eq!(did_you_mean("kimd", known), Some("kind"));
        assert_eq!(did_you_mean("queeu", known), Some("queue"));
        assert_eq!(did_you_mean("Prioritty", known), Some("priority"));
        assert_eq!(did_you_mean("colour", known), None);
        assert_eq!(did_you_mean("", known), None);
        assert_eq!(did_you_mean(&"q".repeat(1 << 20), known), None);
    }
}
