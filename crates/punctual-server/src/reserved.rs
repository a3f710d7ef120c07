//! Documents that only the server's own code may change, and admins.

use punctual::store::DocOp;

use crate::{activity, operations, session, token};

/// The prefixes of their keys.
const PREFIXES: [&str; 4] = [token::PREFIX, session::PREFIX, operations::PREFIX, activity::PREFIX];

/// Returns whether a step on documents concerns tokens, sessions of browsers, operations or the activity log, so that only an admin of the whole store
/// may take it from outside.
///
/// The same holds for a list with a prefix, if it can contain such keys: this is so for each prefix of `token/`.
///
/// ```
/// # use punctual::store::DocOp;
/// # use punctual_server::is_reserved;
/// assert!(is_reserved(&DocOp::Get { key: "token/00c0ffee".to_owned() }));
/// assert!(is_reserved(&DocOp::List { prefix: "to".to_owned(), after: None, limit: 1 }));
/// assert!(!is_reserved(&DocOp::Get { key: "schedule/nightly".to_owned() }));
/// ```
pub fn is_reserved(op: &DocOp) -> bool {
    PREFIXES.iter().any(|reserved| match op {
        DocOp::Get { key } | DocOp::Put { key, .. } | DocOp::Remove { key, .. } => key.starts_with(reserved),
        DocOp::List { prefix, .. } => prefix.starts_with(reserved) || reserved.starts_with(prefix.as_str()),
    })
}
