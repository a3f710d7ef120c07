//! The fields of a job that are sent beside its id, kind and payload: pairs of a name and a value, the same for every
//! target.

use punctual::JobRecord;

/// The prefix of names of ours. Headers of a job that begin with it are not sent, because they would look like ours.
const PREFIX: &str = "punctual-";

/// Returns the job's headers, then the fields of ours.
pub(crate) fn of(job: &JobRecord) -> Vec<(String, String)> {
    let own = job.headers.iter().filter(|(name, _)| !name.to_ascii_lowercase().starts_with(PREFIX));
    let mut fields: Vec<_> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
    fields.extend(ours(job));
    fields
}

/// Returns the fields of a job beside its headers.
pub(crate) fn ours(job: &JobRecord) -> [(String, String); 4] {
    let ours = [
        ("kind", job.kind.clone()),
        ("queue", job.queue.clone()),
        ("attempt", job.attempt.to_string()),
        ("run-at-ms", job.run_at.as_ms().to_string()),
    ];
    ours.map(|(name, value)| (format!("{PREFIX}{name}"), value))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::job;

    #[test]
    fn headers_of_a_job_never_pretend_to_be_ours() {
        let mut job = job();
        job.headers = BTreeMap::from([
            ("Punctual-Kind".to_owned(), "admin".to_owned()),
            ("traceparent".to_owned(), "00-1".to_owned()),
        ]);
        let fields = of(&job);
        let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["traceparent", "punctual-kind", "punctual-queue", "punctual-attempt", "punctual-run-at-ms"]
        );
        assert_eq!(fields[1].1, "email.send");
    }
}
