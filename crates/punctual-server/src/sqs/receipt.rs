//! A receipt handle: the lease of a job, and the queue that it was received from, as an opaque text.
//!
//! It is no secret, and gives no right: who uses one needs a right in the queue of the job.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use punctual::{JobId, store::Lease};
use sha2::{Digest as _, Sha256};

use super::fault::{Code, Fault};

/// The form of a handle, in its first byte.
const VERSION: u8 = 1;
/// The bytes of a handle: its version, an id, a fence, and a part of the hash of the queue's name.
const BYTES: usize = 1 + 16 + 8 + QUEUE_BYTES;
const QUEUE_BYTES: usize = 8;

/// Returns the handle of a lease.
pub(super) fn write(lease: Lease, queue: &str) -> String {
    let mut bytes = Vec::with_capacity(BYTES);
    bytes.push(VERSION);
    bytes.extend_from_slice(lease.job.as_bytes());
    bytes.extend_from_slice(&lease.fence.to_be_bytes());
    bytes.extend_from_slice(&mark(queue));
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads a handle, and checks that it is of this queue.
pub(super) fn read(text: &str, queue: &str) -> Result<Lease, Fault> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
    let bytes: [u8; BYTES] = bytes.try_into().map_err(|_| invalid())?;
    let (id, fence) = (&bytes[1..17], &bytes[17..25]);
    if bytes[0] != VERSION || bytes[25..] != mark(queue) {
        return Err(invalid());
    }
    let id: [u8; 16] = id.try_into().expect("invariant: 16 bytes");
    let fence: [u8; 8] = fence.try_into().expect("invariant: 8 bytes");
    let job = JobId::from_bytes(id).map_err(|_| invalid())?;
    Ok(Lease { job, fence: u64::from_be_bytes(fence) })
}

/// Of a handle that is not one of the queue.
pub(super) fn invalid() -> Fault {
    Fault::new(
        Code::ReceiptHandleIsInvalid,
        "The input receipt handle is invalid: it is not one of this queue.",
    )
}

fn mark(queue: &str) -> [u8; QUEUE_BYTES] {
    let hash: [u8; 32] = Sha256::digest(queue).into();
    std::array::from_fn(|at| hash[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_of_one_lease_and_one_queue() {
        let job = "0198c1a0-0000-7000-8000-000000000001".parse().unwrap();
        let lease = Lease { job, fence: u64::MAX - 1 };
        let text = write(lease, "mail");
        assert_eq!(read(&text, "mail").unwrap(), lease);
        assert!(read(&text, "mails").is_err());
        for wrong in ["", "x", "?", &text[1..], &format!("{text}A"), &"A".repeat(text.len())] {
            assert_eq!(read(wrong, "mail").unwrap_err().code, Code::ReceiptHandleIsInvalid, "{wrong}");
        }
    }
}
