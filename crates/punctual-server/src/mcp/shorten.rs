//! Shortens jobs: an assistant has little use for long payloads, and one of them must not hide the rest of a page.

use std::collections::BTreeMap;

use serde_json::value::{RawValue, to_raw_value};

/// A JSON object whose values are left as they are, so that large numbers keep their digits.
type Fields = BTreeMap<String, Box<RawValue>>;

/// The fields of a job that its producer, or its handler, can make long.
const LONG: [&str; 4] = ["payload", "payload_base64", "result", "result_base64"];

/// Leaves out of a job, or of each job of a page, what is longer than so many bytes of JSON. What is no job stays as it is.
pub(super) fn shortened(text: String, field_bytes_max: usize) -> String {
    let short = || {
        let mut answer: Fields = serde_json::from_str(&text).ok()?;
        if let Some(jobs) = answer.get("jobs") {
            let mut jobs: Vec<Fields> = serde_json::from_str(jobs.get()).ok()?;
            jobs.iter_mut().try_for_each(|job| shorten(job, field_bytes_max))?;
            answer.insert("jobs".to_owned(), to_raw_value(&jobs).ok()?);
        } else {
            shorten(&mut answer, field_bytes_max)?;
        }
        serde_json::to_string(&answer).ok()
    };
    short().unwrap_or(text)
}

fn shorten(job: &mut Fields, field_bytes_max: usize) -> Option<()> {
    for name in LONG {
        if let Some(value) = job.get_mut(name)
            && field_bytes_max < value.get().len()
        {
            *value = to_raw_value(&format!("… left out: {} bytes", value.get().len())).ok()?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_payloads_and_results_are_left_out() {
        let job = r#"{"id":"a","payload":{"n":12345678901234567890123},"result":"ok"}"#;
        assert_eq!(shortened(job.to_owned(), 30), job);
        let left = r#"{"id":"a","payload":"… left out: 29 bytes","result":"ok"}"#;
        assert_eq!(shortened(job.to_owned(), 28), left);
        let page = format!(r#"{{"jobs":[{job}],"next":"b"}}"#);
        assert_eq!(shortened(page, 28), format!(r#"{{"jobs":[{left}],"next":"b"}}"#));
        assert_eq!(shortened("no JSON".to_owned(), 1), "no JSON");
    }
}
