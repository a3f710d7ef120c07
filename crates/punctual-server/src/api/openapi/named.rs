//! Gives each object of a schema a name and a title of its own.
//!
//! A generator makes a type of each object. Of one within another it derives a name, and two of these can be equal: then it
//! leaves out what uses them. So no object is left within another.

use serde_json::{Map, Value, json};

use super::shape::reference;

/// Moves each object within the schemas into a schema of its own.
///
/// Its name is that of what it is in, with its field, or with what says which it is of several.
pub(super) fn flat(schemas: impl IntoIterator<Item = (String, Value)>) -> Map<String, Value> {
    let mut all = Map::new();
    let (others, own): (Vec<_>, Vec<_>) =
        schemas.into_iter().partition(|(_, schema)| schema.get("$ref").is_some());
    for (name, schema) in own {
        put(name, schema, &mut all);
    }
    // One that only refers to another one is that once more: otherwise, a generator would make two types of one title.
    for (name, schema) in others {
        let aim = schema["$ref"].as_str().and_then(|aim| all.get(aim.rsplit('/').next()?));
        let mut copy = aim.cloned().unwrap_or(schema);
        copy["title"] = json!(name);
        all.insert(name, copy);
    }
    all
}

fn put(name: String, mut schema: Value, all: &mut Map<String, Value>) {
    parts(&name, &mut schema, all);
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("title").or_insert_with(|| json!(name));
    }
    // A part that is used twice is the same both times.
    assert!(
        all.get(&name).is_none_or(|other| *other == schema),
        "invariant: {name} is the name of two schemas"
    );
    all.insert(name, schema);
}

/// Moves the objects of the fields, items and alternatives of a schema.
fn parts(name: &str, schema: &mut Value, all: &mut Map<String, Value>) {
    let Some(schema) = schema.as_object_mut() else { return };
    for (field, part) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        // The only field of an alternative is already in its name.
        let own = match words(field) {
            own if !name.ends_with(&own) => own,
            _ if part.get("properties").is_some() => "Body".to_owned(),
            _ => String::new(),
        };
        replace(&format!("{name}{own}"), part, all);
    }
    for (field, word) in [("items", "Item"), ("additionalProperties", "Value")] {
        if let Some(part) = schema.get_mut(field) {
            replace(&format!("{name}{word}"), part, all);
        }
    }
    for field in ["oneOf", "anyOf"] {
        for part in schema.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let own = discriminator(part).map(words).unwrap_or_default();
            replace(&format!("{name}{own}"), part, all);
        }
    }
}

/// Puts a reference in the place of an object.
fn replace(name: &str, part: &mut Value, all: &mut Map<String, Value>) {
    let is_object = part.get("properties").is_some();
    if !is_object {
        return parts(name, part, all);
    }
    let mut object = part.take();
    let name = object.get("title").and_then(Value::as_str).unwrap_or(name).to_owned();
    let is_nullable = object["type"].is_array();
    if is_nullable {
        object["type"] = json!("object");
    }
    let own = reference(&name);
    *part = if is_nullable { json!({"anyOf": [own, {"type": "null"}]}) } else { own };
    if let Some(description) = object.get("description").filter(|_| is_nullable) {
        part["description"] = description.clone();
    }
    put(name, object, all);
}

/// Returns what says which of several objects one is: its status, or else its first field that must be there.
fn discriminator(part: &Value) -> Option<&str> {
    let status = part.pointer("/properties/status/const");
    status.or_else(|| part.pointer("/required/0")).and_then(Value::as_str)
}

/// Returns a name as a part of another one: `retry_after_ms` as `RetryAfterMs`.
fn words(name: &str) -> String {
    name.split('_').filter(|word| !word.is_empty()).map(super::capitalised).collect()
}
