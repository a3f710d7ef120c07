//! A change of some settings of a queue, and the version of all of them.

use punctual::{
    Error,
    store::{QueueSettings, wire},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::api::Problem;

/// Settings whose parts are changed one by one. All others are replaced as a whole.
const IN_PARTS: [&str; 3] = ["group", "groups", "defaults"];

/// The settings that change. `null` restores a default, and removes a group from `groups`.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Change(Map<String, Value>);

impl Change {
    /// Makes the settings after the change of these.
    pub(super) fn of(&self, seen: &QueueSettings) -> Result<QueueSettings, Problem> {
        if self.0.contains_key("paused") {
            return Err(Error::invalid("paused is no setting")
                .with_hint(
                    "pause a queue with POST queues/NAME/pause, and resume it with POST queues/NAME/resume",
                )
                .into());
        }
        let mut settings = fields(seen);
        for (name, new) in &self.0 {
            if has_a_list(new) || IN_PARTS.contains(&name.as_str()) && !(new.is_object() || new.is_null()) {
                return Err(Error::invalid(format!("{name} is not an object")).into());
            }
            // A group has limits, whose parts are changed one by one, too.
            let depth = if name == "groups" { 2 } else { usize::from(IN_PARTS.contains(&name.as_str())) };
            change(&mut settings, name, new, depth);
        }
        let new: QueueSettings = serde_json::from_value(Value::Object(settings))
            .map_err(|e| Error::invalid(format!("the settings do not fit: {}", wire::words(&e))))?;
        Ok(new)
    }
}

/// Whether there is a list in a value. No setting has one, and serde would read it by position.
fn has_a_list(value: &Value) -> bool {
    match value {
        Value::Array(_) => true,
        Value::Object(fields) => fields.values().any(has_a_list),
        _ => false,
    }
}

/// Changes a field, and what is in it down to a depth.
fn change(of: &mut Map<String, Value>, name: &str, new: &Value, depth: usize) {
    match new {
        Value::Null => drop(of.remove(name)),
        Value::Object(parts) if 0 < depth => {
            let own = of.entry(name).or_insert(Value::Null);
            if !own.is_object() {
                *own = Value::Object(Map::new());
            }
            let Some(own) = own.as_object_mut() else { return };
            parts.iter().for_each(|(name, new)| change(own, name, new, depth - 1));
        }
        _ => drop(of.insert(name.to_owned(), new.clone())),
    }
}

/// Returns the version of settings: a number of what they are. A pause is none of them.
pub(super) fn version(settings: &QueueSettings) -> u64 {
    let text = Value::Object(fields(settings)).to_string();
    let digest: [u8; 32] = Sha256::digest(text).into();
    u64::from_be_bytes(std::array::from_fn(|at| digest[at]))
}

/// Returns the settings by name, without the pause.
fn fields(settings: &QueueSettings) -> Map<String, Value> {
    match serde_json::to_value(QueueSettings { paused: None, ..settings.clone() }) {
        Ok(Value::Object(fields)) => fields,
        _ => unreachable!("invariant: settings are plain data, which JSON can hold"),
    }
}

#[cfg(test)]
mod tests {
    use punctual::store::Pause;
    use serde_json::json;

    use super::*;

    fn changed(settings: &QueueSettings, change: Value) -> QueueSettings {
        serde_json::from_value::<Change>(change).unwrap().of(settings).unwrap()
    }

    #[test]
    fn only_what_is_given_changes() {
        let all = json!({
            "order": "lifo", "max_jobs": 5, "rate": {"max": 3, "period_ms": 1_000, "burst": 2},
            "group": {"weight": 2, "concurrency": 7},
            "groups": {"a": {"weight": 3, "concurrency": 1}, "b": {"weight": 4}},
            "defaults": {"max_attempts": 2, "priority": "high"},
        });
        let settings: QueueSettings = serde_json::from_value(all).unwrap();
        let new = changed(
            &settings,
            json!({
                "max_jobs": null, "rate": {"max": 9, "period_ms": 50}, "group": {"weight": null},
                "groups": {"a": {"weight": 5}, "b": null, "c": {"concurrency": 6}},
                "defaults": {"max_attempts": 4},
            }),
        );
        let expected = json!({
            "order": "lifo", "rate": {"max": 9, "period_ms": 50}, "group": {"concurrency": 7},
            "groups": {"a": {"weight": 5, "concurrency": 1}, "c": {"concurrency": 6}},
            "defaults": {"max_attempts": 4, "priority": "high"},
        });
        assert_eq!(new, serde_json::from_value(expected).unwrap());
        assert_eq!(changed(&settings, json!({})), settings);
        assert_ne!(version(&settings), version(&new));
        let pause = Pause { since_ms: 1, by: "ana".to_owned(), reason: "moved".to_owned() };
        assert_eq!(version(&settings), version(&QueueSettings { paused: Some(pause), ..settings.clone() }));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for change in [
            json!({"paused": null}),
            json!({"mx_jobs": 1}),
            json!({"max_jobs": "5"}),
            json!({"group": 5}),
            json!({"groups": [1]}),
            json!({"groups": {"a": {"wait": 1}}}),
            json!({"groups": {"a": [1, 2]}}),
            json!({"rate": [1, 2, 3]}),
            json!({"done": {"age_ms": 1}}),
        ] {
            let change: Change = serde_json::from_value(change).unwrap();
            assert!(change.of(&QueueSettings::default()).is_err(), "{change:?}");
        }
    }
}
