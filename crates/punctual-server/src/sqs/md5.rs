//! The digests by which SDKs check what they sent and got. MD5 protects nothing here: it is what the protocol has.

use md5::{Digest as _, Md5};

use super::message::{Attribute, Value};
use crate::token::hex;

/// Returns the digest of a body.
pub(super) fn of_body(body: &str) -> String {
    hex(&Md5::digest(body))
}

/// Returns the digest of attributes, which come in the order of their names; `None` if there are none.
///
/// For each: length and bytes of its name, length and bytes of its type, one byte for the kind of its value (1 text, 2 bytes), length and
/// bytes of its value. Lengths have 4 bytes, the highest first.
pub(super) fn of_attributes<'a>(
    attributes: impl IntoIterator<Item = (&'a String, &'a Attribute)>,
) -> Option<String> {
    let (mut digest, mut any) = (Md5::new(), false);
    for (name, attribute) in attributes {
        any = true;
        let (kind, value): (u8, &[u8]) = match &attribute.value {
            Value::Text(text) => (1, text.as_bytes()),
            Value::Bytes(bytes) => (2, bytes),
        };
        for part in [name.as_bytes(), attribute.data_type.as_bytes()] {
            add(&mut digest, part);
        }
        digest.update([kind]);
        add(&mut digest, value);
    }
    any.then(|| hex(&digest.finalize()))
}

fn add(digest: &mut Md5, part: &[u8]) {
    let n = u32::try_from(part.len()).expect("invariant: a message has at most 1 MiB");
    digest.update(n.to_be_bytes());
    digest.update(part);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn text(data_type: &str, value: &str) -> Attribute {
        Attribute { data_type: data_type.to_owned(), value: Value::Text(value.to_owned()) }
    }

    #[test]
    fn a_body_has_the_digest_of_its_bytes() {
        assert_eq!(of_body("This is a test message"), "fafb00f5732ab283681e124bf8747ed1");
        assert_eq!(of_body(""), "d41d8cd98f00b204e9800998ecf8427e");
    }

    /// By hand: `printf '\0\0\0\1a\0\0\0\6String\1\0\0\0\1b' | md5sum`, and so on.
    #[test]
    fn attributes_have_the_digest_that_sdks_compute() {
        let one = BTreeMap::from([("a".to_owned(), text("String", "b"))]);
        assert_eq!(of_attributes(&one).unwrap(), "bef8bf215374a0a228d67533b1a488be");
        let several = BTreeMap::from([
            ("z".to_owned(), text("Number.int", "7")),
            ("a".to_owned(), text("String", "ü")),
            ("m".to_owned(), Attribute { data_type: "Binary".to_owned(), value: Value::Bytes(vec![0, 255]) }),
        ]);
        assert_eq!(of_attributes(&several).unwrap(), "eb3851eb4db922d5cf3c038ea7356ef6");
        assert_eq!(of_attributes(&BTreeMap::new()), None);
    }
}
