//! Values inside JSON payloads: all paths of a filter are found in one walk through the text.
//!
//! The walk reads a text that was checked before, so it only looks for the ends of values. Nothing is built from what no
//! path leads to.

use std::{borrow::Cow, ops::Range};

use serde_json::value::RawValue;

/// The node at which each path begins.
const ROOT: usize = 0;

/// The paths of a filter as a tree: paths that begin alike share their first steps.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    nodes: Vec<Node>,
    /// What the last walk found at each node.
    seen: Vec<Seen>,
}

/// A step of paths.
#[derive(Clone, Debug, Default)]
struct Node {
    parent: usize,
    /// The steps after this one, sorted, and their nodes.
    keys: Vec<(String, usize)>,
    /// The same for those that are an index of an array, sorted by it.
    indexes: Vec<(usize, usize)>,
}

/// What was found at a node.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// How often the walk was here. Of several fields with one name, the last one counts.
    visits: u32,
    /// How often the walk had been at the parent then.
    of: u32,
    /// The value, unless it is an object or an array.
    value: Option<Range<usize>>,
}

impl Paths {
    pub(super) fn new() -> Self {
        Self { nodes: vec![Node::default()], seen: Vec::new() }
    }

    /// Adds a path; returns the node to which it leads.
    pub(super) fn add(&mut self, path: &[String]) -> usize {
        path.iter().fold(ROOT, |parent, step| {
            let new = self.nodes.len();
            let node = &mut self.nodes[parent];
            let place = match node.keys.binary_search_by(|(key, _)| key.cmp(step)) {
                Ok(known) => return node.keys[known].1,
                Err(place) => place,
            };
            node.keys.insert(place, (step.clone(), new));
            if let Ok(index) = step.parse() {
                let place = node.indexes.partition_point(|(other, _)| *other <= index);
                node.indexes.insert(place, (index, new));
            }
            self.nodes.push(Node { parent, ..Node::default() });
            new
        })
    }

    /// Walks through a payload; returns the text in which [`Self::text`] finds values, or `None` if it is not JSON.
    /// Adds the bytes that were read to `steps`.
    pub(super) fn walk<'a>(&mut self, json: &'a [u8], steps: &mut u64) -> Option<&'a str> {
        *steps += json.len() as u64;
        let text = serde_json::from_slice::<&RawValue>(json).ok()?.get();
        self.seen.clear();
        self.seen.resize(self.nodes.len(), Seen::default());
        let mut walk =
            Walk { nodes: &self.nodes, seen: &mut self.seen, text: text.as_bytes(), at: 0, read: 0 };
        walk.visit(ROOT, 0);
        *steps += walk.read as u64;
        Some(text)
    }

    /// Returns the value at a node, in the text of the last walk: a string without its quotes, any other value as it is
    /// written, so that no digit of a large number is lost.
    pub(super) fn text<'a>(&self, text: &'a str, node: usize) -> Option<Cow<'a, str>> {
        let value = text.get(self.seen.get(node)?.value.clone()?)?;
        let mut at = node;
        while at != ROOT {
            let parent = self.nodes[at].parent;
            if self.seen[at].of != self.seen[parent].visits {
                return None;
            }
            at = parent;
        }
        if value.starts_with('"') {
            return serde_json::from_str::<String>(value).ok().map(Cow::Owned);
        }
        Some(Cow::Borrowed(value))
    }
}

/// A walk through a text that is known to be JSON.
struct Walk<'a> {
    nodes: &'a [Node],
    seen: &'a mut [Seen],
    text: &'a [u8],
    at: usize,
    /// The bytes that were read, some of them several times: `0` and `00` are one place in an array.
    read: usize,
}

impl Walk<'_> {
    /// Reads the value of a node.
    fn visit(&mut self, node: usize, of: u32) {
        let visits = self.seen[node].visits + 1;
        self.seen[node] = Seen { visits, of, value: None };
        match self.byte() {
            b'{' => self.object(node, visits),
            b'[' => self.array(node, visits),
            _ => {
                let start = self.at;
                self.skip();
                self.seen[node].value = Some(start..self.at);
            }
        }
    }

    fn object(&mut self, node: usize, visits: u32) {
        let nodes = self.nodes;
        while self.next_item() {
            let key = self.string();
            self.space();
            self.step();
            self.space();
            match key_of(&self.text[key]).and_then(|key| nodes[node].child(&key)) {
                Some(child) => self.visit(child, visits),
                None => self.skip(),
            }
        }
    }

    fn array(&mut self, node: usize, visits: u32) {
        let nodes = self.nodes;
        let (mut wanted, mut index) = (nodes[node].indexes.as_slice(), 0);
        while self.next_item() {
            let start = self.at;
            self.skip();
            let end = self.at;
            while let Some((&(at, child), rest)) = wanted.split_first().filter(|((at, _), _)| *at <= index) {
                wanted = rest;
                if at == index {
                    self.at = start;
                    self.visit(child, visits);
                    self.at = end;
                }
            }
            index += 1;
        }
    }

    /// Goes to the next item of an object or array; returns `false` after its end. It begins at the opening bracket, or
    /// after an item.
    fn next_item(&mut self) -> bool {
        self.space();
        if self.ends() {
            return false;
        }
        // The opening bracket, or a comma.
        self.step();
        self.space();
        !self.ends()
    }

    /// Steps over the end of an object or array, if it is here.
    fn ends(&mut self) -> bool {
        let is_end = matches!(self.byte(), b'}' | b']' | 0);
        if is_end {
            self.step();
        }
        is_end
    }

    /// Steps over a value.
    fn skip(&mut self) {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.byte() {
                b'"' => {
                    self.string();
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.step();
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    self.step();
                }
                0 => break,
                // Between the values of an object or array.
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => self.step(),
                _ => self.scalar(),
            }
            if depth == 0 {
                break;
            }
        }
        self.read += self.at - start;
    }

    /// Steps over a number, `true`, `false` or `null`.
    fn scalar(&mut self) {
        while !matches!(self.byte(), b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' | 0) {
            self.step();
        }
    }

    /// Steps over a string; returns where it is, with its quotes.
    fn string(&mut self) -> Range<usize> {
        let start = self.at;
        loop {
            self.step();
            match self.byte() {
                // What is after it is no end.
                b'\\' => self.step(),
                b'"' => {
                    self.step();
                    break;
                }
                0 => break,
                _ => {}
            }
        }
        start..self.at
    }

    fn space(&mut self) {
        while matches!(self.byte(), b' ' | b'\t' | b'\n' | b'\r') {
            self.step();
        }
    }

    /// Returns the byte that is next; 0 at the end of the text, which JSON has nowhere else.
    fn byte(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn step(&mut self) {
        self.at = (self.at + 1).min(self.text.len());
    }
}

impl Node {
    fn child(&self, key: &str) -> Option<usize> {
        let found = self.keys.binary_search_by(|(other, _)| other.as_str().cmp(key)).ok()?;
        Some(self.keys[found].1)
    }
}

/// Reads the name of a field. A name that is no text leads nowhere.
fn key_of(quoted: &[u8]) -> Option<Cow<'_, str>> {
    if quoted.contains(&b'\\') {
        return serde_json::from_slice::<String>(quoted).ok().map(Cow::Owned);
    }
    let name = quoted.get(1..quoted.len().checked_sub(1)?)?;
    std::str::from_utf8(name).ok().map(Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    /// The same, obviously right: one path alone, and each step reads the rest again.
    fn alone(json: &[u8], path: &[String]) -> Option<String> {
        let mut at: &RawValue = serde_json::from_slice(json).ok()?;
        for step in path {
            at = if at.get().starts_with('[') {
                *serde_json::from_str::<Vec<&RawValue>>(at.get()).ok()?.get(step.parse::<usize>().ok()?)?
            } else {
                *serde_json::from_str::<BTreeMap<String, &RawValue>>(at.get()).ok()?.get(step)?
            };
        }
        match at.get().as_bytes().first()? {
            b'"' => serde_json::from_str::<String>(at.get()).ok(),
            b'{' | b'[' => None,
            _ => Some(at.get().to_owned()),
        }
    }

    /// Compares one walk for all paths with a walk for each.
    fn check(json: &str, paths: &[&str]) {
        let (mut all, mut steps) = (Paths::new(), 0);
        let paths: Vec<_> = paths.iter().map(|text| path(text)).collect();
        let nodes: Vec<usize> = paths.iter().map(|path| all.add(path)).collect();
        let text = all.walk(json.as_bytes(), &mut steps);
        for (path, node) in paths.iter().zip(nodes) {
            let found = text.and_then(|text| all.text(text, node)).map(Cow::into_owned);
            assert_eq!(found, alone(json.as_bytes(), path), "{json} {path:?}");
        }
    }

    #[test]
    fn a_walk_finds_what_single_paths_find() {
        let paths = ["a", "a.b", "a.b.c", "a.0", "a.00", "a.1.b", "b", "d\"", "\u{e4}", "a.b.0.1", "0"];
        for json in [
            "",
            "7",
            "[1",
            r#"{"a":1}x"#,
            r#"{"a":{"b":{"c":"x"}},"b":12345678901234567890123}"#,
            r#" { "a" : [ "x" , { "b" : "y\"z" } ] , "b" : null } "#,
            r#"{"a":{"b":1},"a":{"c":2}}"#,
            r#"{"a":{"b":1},"a":3}"#,
            r#"{"a":3,"a":{"b":[[0,"q"],1]}}"#,
            r#"{"a":{"b":1,"b":{"c":2},"b":4}}"#,
            r#"{"\u0061":{"\u0062":"\u00e4"},"d\"":true,"\u00e4":"]}\\"}"#,
            r#"{"x":["]}",{"a":[]},"\\"],"a":[],"b":{}}"#,
            r#"["p",{"a":"q"},[["r"]]]"#,
            r#"{"a":[10,20],"a":[30]}"#,
            r#"{"a":"\ud800","b":-1.5e3}"#,
        ] {
            check(json, &paths);
        }
    }

    #[test]
    fn a_payload_is_read_once_however_many_paths_lead_into_it() {
        let json = format!("{}{}{}", r#"{"a":"#.repeat(15), r#"{"k":1,"l":[1,2,3]}"#, "}".repeat(15));
        let mut paths = Paths::new();
        for n in 0..62 {
            let steps: Vec<String> = ["a"; 15].into_iter().chain(["k"]).map(str::to_owned).collect();
            paths.add(&steps[..steps.len() - n % 3]);
        }
        let mut steps = 0;
        paths.walk(json.as_bytes(), &mut steps).unwrap();
        assert!(steps <= 2 * json.len() as u64, "{steps} steps for {} bytes", json.len());
    }

    fn value() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("\"a\"".to_owned()),
            Just(r#""{[\"\\""#.to_owned()),
            (-9..9i32).prop_map(|n| n.to_string()),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let fields = prop::collection::vec(("[ab01]", inner.clone()), 0..4);
            let object = fields.prop_map(|fields| {
                let fields: Vec<_> = fields.iter().map(|(k, v)| format!(" \"{k}\": {v} ")).collect();
                format!("{{{}}}", fields.join(","))
            });
            let array =
                prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{} ]", items.join(" ,")));
            prop_oneof![object, array]
        })
    }

    proptest! {
        #[test]
        fn one_walk_finds_the_same_as_many(json in value(), paths in prop::collection::vec("[ab01](\\.[ab01]){0,3}", 1..8)) {
            check(&json, &paths.iter().map(String::as_str).collect::<Vec<_>>());
        }

        #[test]
        fn no_payload_makes_it_panic(json in "[\\[\\]{}\",: a1\\\\]{0,40}") {
            let (mut paths, mut steps) = (Paths::new(), 0);
            let node = paths.add(&path("a.1.a"));
            if let Some(text) = paths.walk(json.as_bytes(), &mut steps) {
                paths.text(text, node);
            }
        }
    }
}
