//! The parts that schemas are made of.

use punctual::limits::{BATCH_MAX, INSTANT_MAX_MS};
use serde_json::{Map, Value, json};

/// Schemas by name.
pub(super) type Schemas = Vec<(&'static str, Value)>;
/// A field of an object. A name that ends in `?` can be left out.
pub(super) type Field = (&'static str, Value);

/// Gives an object a name of its own, where its place would make a long one.
pub(super) fn titled(title: &str, mut schema: Value) -> Value {
    schema["title"] = json!(title);
    schema
}

/// Returns the reference to a schema.
pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// A schema in the place of a field, described there.
pub(super) fn of(name: &str, description: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}"), "description": description})
}

pub(super) fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

pub(super) fn base64(description: &str) -> Value {
    json!({"type": "string", "contentEncoding": "base64", "description": description})
}

pub(super) fn id(description: &str) -> Value {
    json!({"type": "string", "format": "uuid", "description": description})
}

/// A number of up to this many hexadecimal digits, not counting zeros in front.
pub(super) fn hex(digits: usize, description: &str) -> Value {
    json!({"type": "string", "pattern": format!("^0*[0-9A-Fa-f]{{1,{digits}}}$"), "description": description})
}

/// One of several words.
pub(super) fn word(words: &[&str], description: &str) -> Value {
    json!({"type": "string", "enum": words, "description": description})
}

pub(super) fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

/// A whole number that can be negative.
pub(super) fn signed(description: &str) -> Value {
    json!({"type": "integer", "format": "int64", "description": description})
}

/// A whole number from 0.
pub(super) fn whole(description: &str) -> Value {
    json!({"type": "integer", "format": "int64", "minimum": 0, "description": description})
}

/// A whole number within bounds.
pub(super) fn within(min: u64, max: u64, description: &str) -> Value {
    json!({"type": "integer", "format": "int64", "minimum": min, "maximum": max, "description": description})
}

/// Unix time in milliseconds.
pub(super) fn instant(description: &str) -> Value {
    within(0, INSTANT_MAX_MS, description)
}

/// Any JSON.
pub(super) fn any(description: &str) -> Value {
    json!({"description": description})
}

pub(super) fn list(items: &Value, description: &str) -> Value {
    json!({"type": "array", "items": items, "description": description})
}

/// A list of at most 1,000 items.
pub(super) fn batch(items: &Value, description: &str) -> Value {
    json!({"type": "array", "items": items, "maxItems": BATCH_MAX, "description": description})
}

/// An object with names of the caller.
pub(super) fn map(values: &Value, description: &str) -> Value {
    json!({"type": "object", "additionalProperties": values, "description": description})
}

/// The same, or `null`.
pub(super) fn or_null(mut schema: Value) -> Value {
    if let Some(kind) = schema.get("type").and_then(Value::as_str).map(str::to_owned) {
        schema["type"] = json!([kind, "null"]);
        if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            words.push(Value::Null);
        }
        return schema;
    }
    let description = schema.as_object_mut().and_then(|fields| fields.remove("description"));
    let mut either = json!({"anyOf": [schema, {"type": "null"}]});
    if let Some(description) = description {
        either["description"] = description;
    }
    either
}

/// An object of an answer. A later version can add fields.
pub(super) fn open(description: &str, fields: impl IntoIterator<Item = Field>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, schema) in fields {
        let optional = name.strip_suffix('?');
        if optional.is_none() {
            required.push(name);
        }
        properties.insert(optional.unwrap_or(name).to_owned(), schema);
    }
    let mut object = json!({"type": "object", "description": description, "properties": properties});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

/// An object of a request. A field that is not listed is an error.
pub(super) fn closed(description: &str, fields: impl IntoIterator<Item = Field>) -> Value {
    let mut object = open(description, fields);
    object["additionalProperties"] = json!(false);
    object
}

pub(super) fn one_of(description: &str, schemas: impl IntoIterator<Item = Value>) -> Value {
    let schemas: Vec<Value> = schemas.into_iter().collect();
    json!({"description": description, "oneOf": schemas})
}

/// An object with one field, which says what it is.
pub(super) fn tagged(tag: &'static str, content: Value) -> Value {
    closed("", [(tag, content)])
}

/// An object of an answer whose field `status` says what it is.
pub(super) fn status(name: &str, description: &str, fields: impl IntoIterator<Item = Field>) -> Value {
    open(description, std::iter::once(("status", json!({"const": name}))).chain(fields))
}
