//! Sixteen bytes that stand for a few texts. Pure.

use uuid::Uuid;

/// The digest of texts, some of which may be missing: SHA-1 by way of a UUID of version 5 (RFC 9562, 5.5). No two lists share
/// what is hashed: presence and length come first.
pub(crate) fn digest(parts: &[Option<&str>]) -> [u8; 16] {
    let mut name = Vec::with_capacity(parts.iter().map(|part| 5 + part.unwrap_or_default().len()).sum());
    for part in parts {
        name.push(u8::from(part.is_some()));
        let part = part.unwrap_or_default();
        name.extend_from_slice(&(part.len() as u32).to_be_bytes());
        name.extend_from_slice(part.as_bytes());
    }
    Uuid::new_v5(&Uuid::NAMESPACE_OID, &name).into_bytes()
}

/// What stands for a group in its queue.
pub(crate) fn group_digest(group: &str) -> [u8; 16] {
    digest(&[Some(group)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_lists_of_texts_are_the_same() {
        let lists: [&[Option<&str>]; 6] = [
            &[Some("ab"), Some("c")],
            &[Some("a"), Some("bc")],
            &[Some("abc"), None],
            &[Some("abc"), Some("")],
            &[Some("abc")],
            &[None, Some("abc")],
        ];
        for (i, list) in lists.iter().enumerate() {
            assert!(lists[i + 1..].iter().all(|other| digest(other) != digest(list)), "{list:?}");
        }
        assert_eq!(digest(lists[0]), digest(&[Some("ab"), Some("c")]));
    }
}
