//! How a message is ordered, and when it is the same as another.
//!
//! In a FIFO queue, its message group is a concurrency key of one: a message is received after the one before it was deleted. It is
//! compared with others of its message group for five minutes. A purge, and another queue of the same name, have no such history: the
//! generation of the queue is part of the key. In a standard queue, a message group is a tenant: a group of the store,
//! which shares the queue fairly with other groups.

use std::time::Duration;

use punctual::{JobId, NewJob, Unique, job::Concurrency};
use sha2::{Digest as _, Sha256};

use super::{fault::Fault, message::DEDUPLICATION, queue::Queue};
use crate::token::hex;

/// How long a message is compared with others.
const WINDOW: Duration = Duration::from_mins(5);
/// The longest id of a message group or for deduplication, in bytes.
const ID_BYTES_MAX: usize = 128;

/// Says of a job in which group it is, and which others are the same.
pub(super) fn place(
    job: &mut NewJob,
    is_fifo: bool,
    queue: &Queue,
    group: Option<String>,
    deduplication: Option<String>,
) -> Result<(), Fault> {
    for (name, id) in [("MessageGroupId", &group), ("MessageDeduplicationId", &deduplication)] {
        if let Some(id) = id {
            check(name, id)?;
        }
    }
    if !is_fifo {
        if deduplication.is_some() {
            return Err(Fault::value(
                "The request includes the parameter MessageDeduplicationId, which is not valid for this queue type.",
            ));
        }
        job.group = group;
        return Ok(());
    }
    let group = group.ok_or_else(|| Fault::missing("MessageGroupId"))?;
    let id = match deduplication {
        Some(id) => id,
        None if queue.attributes.by_content => hex(&Sha256::digest(&job.payload.bytes)),
        None => {
            return Err(Fault::value(
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
            ));
        }
    };
    job.concurrency = Some(Concurrency { key: group, limit: 1 });
    job.unique = Some(Unique::key(format!("{}/{id}", queue.generation)).window(WINDOW));
    job.headers.insert(DEDUPLICATION.to_owned(), id);
    Ok(())
}

/// Checks an id: letters, digits and signs of ASCII.
fn check(name: &str, id: &str) -> Result<(), Fault> {
    if (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Fault::value(format!(
        "Value for parameter {name} is invalid. Reason: {name} can only include alphanumeric and punctuation characters. 1 to \
         {ID_BYTES_MAX} in length."
    )))
}

/// Returns the sequence number of a message. Those of one process rise in the order in which it was sent messages.
pub(super) fn sequence(id: JobId) -> String {
    let bytes = id.as_bytes();
    let ms = u64::from_be_bytes([0, 0, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]);
    let counter = u64::from(u16::from_be_bytes([bytes[6] & 0x0f, bytes[7]]));
    format!("{:020}", u128::from(ms) << 16 | u128::from(counter) << 4)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use punctual::{Payload, job::IdMaker};

    use super::*;
    use crate::sqs::attributes::Attributes;

    fn job() -> NewJob {
        NewJob::new(IdMaker::default().make(1, 0, 0), "k", "q", Payload::json("7"))
    }

    fn placed(is_fifo: bool, by_content: bool, group: Option<&str>, id: Option<&str>) -> Option<NewJob> {
        let mut job = job();
        let queue = Queue {
            created_ms: 0,
            modified_ms: 0,
            generation: 9,
            gone_until_ms: 0,
            deleted_ms: None,
            attributes: Attributes { by_content, ..Attributes::default() },
            tags: BTreeMap::new(),
        };
        let own = |text: Option<&str>| text.map(ToOwned::to_owned);
        place(&mut job, is_fifo, &queue, own(group), own(id)).ok().map(|()| job)
    }

    #[test]
    fn a_message_group_is_a_tenant_or_a_line() {
        let tenant = placed(false, false, Some("acme"), None).unwrap();
        assert_eq!((tenant.group.as_deref(), tenant.concurrency, tenant.unique), (Some("acme"), None, None));
        let line = placed(true, false, Some("acme"), Some("1")).unwrap();
        assert_eq!(line.group, None);
        assert_eq!(line.concurrency, Some(Concurrency { key: "acme".to_owned(), limit: 1 }));
        assert_eq!(line.unique, Some(Unique::key("9/1").window(Duration::from_mins(5))));
    }

    #[test]
    fn a_fifo_queue_needs_a_group_and_something_to_compare() {
        assert!(placed(true, true, None, Some("1")).is_none());
        assert!(placed(true, false, Some("a"), None).is_none());
        let id = |given| placed(true, true, Some("a"), given).unwrap().headers.remove(DEDUPLICATION).unwrap();
        assert_eq!(id(None), "7902699be42c8a8e46fbbb4501726517e86b22c56a189f7625a6da49081b2451");
        assert_eq!(id(Some("1")), "1");
        assert!(placed(false, false, None, Some("1")).is_none());
    }

    #[test]
    fn ids_are_visible_ascii() {
        for id in ["", "a b", "ä", &"x".repeat(129)] {
            assert!(placed(false, false, Some(id), None).is_none(), "{id}");
        }
        assert!(placed(false, false, Some(&"!~".repeat(64)), None).is_some());
    }

    #[test]
    fn sequence_numbers_rise_and_have_20_digits() {
        let mut maker = IdMaker::default();
        let numbers: Vec<String> =
            (0..10_000).map(|n| sequence(maker.make(1_795_192_330_000 + n / 5_000, 0, n))).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b) && numbers.iter().all(|number| number.len() == 20));
    }
}
