//! What the code says about itself: each rule has a case, the layers hold, files stay small, and nobody but a clock asks
//! what time it is.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Where ambient time is read below the runtime, and why that does not make scheduling depend on it (S14).
const AMBIENT_TIME: [(&str, &str); 15] = [
    ("store/clock.rs", "it is the clock"),
    ("store/memory.rs", "a wait lasts in real time; what is due it asks the clock"),
    ("store/redis/doctor.rs", "it tells how fast the server answers"),
    ("store/redis/doctor/notification.rs", "and how fast a notification arrives"),
    ("store/redis/notify.rs", "a wait lasts in real time; what is due it asks a clock"),
    ("store/redis/notify/listener.rs", "so does a block, and what follows it"),
    ("store/redis/connection/awake.rs", "a thread stays awake for so long in real time"),
    ("store/redis/connection/clock_offset.rs", "the server's time is reckoned on a steady clock"),
    ("store/redis/connection/link.rs", "attempts to connect keep a distance in real time"),
    (
        "store/redis/sharded/quiet.rs",
        "what is known of a shard grows old in real time; what is due it asks a clock",
    ),
    ("store/redis/sharded/reshard.rs", "a change of shards is gone on with for so long in real time"),
    ("store/simulation.rs", "in a simulation, the runtime's clock is the system's"),
    ("store/sqlite/engine/file.rs", "times of files are compared with the system's clock"),
    ("store/sqlite/engine/writer.rs", "attempts to write to a failing disk keep a distance in real time"),
    ("store/sqlite/notify/wait.rs", "a wait lasts in real time; what is due it asks the clock"),
];

/// From the bottom up. A layer knows those before it.
const LAYERS: [&str; 3] = ["core", "store", "runtime"];

/// The most names at the root of the crate: what a first program needs, and the modules by task.
const ROOT_NAMES_MAX: usize = 30;

const LINES_MAX: usize = 1_000;

/// A file of source text.
struct Source {
    /// Behind the folder it was looked for in, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// The lines that end up in the library: without comments, and without the tests at the end.
    fn code(&self) -> String {
        let (code, _) = self.text.split_once("\n#[cfg(test)]\nmod tests").unwrap_or((&self.text, ""));
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.fold(String::new(), |code, line| code + line + "\n")
    }
}

/// All Rust files in a folder.
fn sources(folder: &Path) -> Vec<Source> {
    let found = files(folder, &["rs"]);
    assert!(!found.is_empty(), "{} has no source", folder.display());
    found
}

/// All files in a folder that have one of these extensions.
fn files(folder: &Path, extensions: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|own| extensions.iter().any(|wanted| own == *wanted)) {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().replace('\\', "/");
                found.push(Source { path: name, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn library() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn workspace() -> PathBuf {
    library().join("../..")
}

// ── rules ──

/// The rules of the contract, each a heading such as `## S4 Unique`.
fn promised() -> BTreeSet<u32> {
    let text = fs::read_to_string(workspace().join("docs/contract.md")).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("## S")?.split_once(' '))
        .filter_map(|(number, _)| number.parse().ok())
        .collect()
}

/// The rules that a doc comment begins with, as `S4, S11: …`.
fn named(doc: &str) -> Option<BTreeSet<u32>> {
    let (rules, _) = doc.trim_start_matches("///").trim().split_once(": ")?;
    rules.split(", ").map(|rule| rule.strip_prefix('S')?.parse().ok()).collect()
}

/// Each case of the conformance suite and the first line of its doc comment.
fn cases() -> BTreeMap<String, String> {
    let mut cases = BTreeMap::new();
    for Source { path, text } in sources(&library().join("tests/conformance")) {
        let mut doc = None;
        for line in text.lines() {
            if line.starts_with("///") {
                doc.get_or_insert(line);
            } else if let Some(case) = line.strip_suffix("(t: Fixture) {") {
                let name = case.strip_prefix("pub(crate) async fn ").expect("a case is an async function");
                cases.insert(format!("{path}: {name}"), doc.take().unwrap_or_default().to_owned());
            } else {
                doc = None;
            }
        }
    }
    cases
}

#[test]
fn the_contract_has_a_section_for_each_rule_from_1_to_17() {
    assert_eq!(promised(), (1..=17).collect());
}

#[test]
fn each_case_begins_with_the_rules_that_it_shows() {
    for (case, doc) in cases() {
        let rules = named(&doc).unwrap_or_else(|| panic!("{case}: no rule in {doc:?}"));
        assert!(rules.is_subset(&promised()), "{case}: {rules:?}");
    }
}

#[test]
fn each_rule_has_a_case() {
    let shown: BTreeSet<u32> = cases().values().filter_map(|doc| named(doc)).flatten().collect();
    assert_eq!(shown, promised());
}

// ── layers ──

/// The library's files but `lib.rs`, with their layers: the first folder of a path, or the file beside it.
fn layered() -> Vec<(String, Source)> {
    let files = sources(&library().join("src")).into_iter().filter(|source| source.path != "lib.rs");
    // Unit tests in a file of their own belong to no layer.
    let files = files.filter(|source| !source.path.ends_with("/tests.rs"));
    files
        .map(|source| {
            let layer = source.path.split(['/', '.']).next().unwrap_or_default().to_owned();
            assert!(LAYERS.contains(&layer.as_str()), "{} is in none of {LAYERS:?}", source.path);
            (layer, source)
        })
        .collect()
}

/// All paths that begin with `crate::`, those in braces written out: `job::JobRecord`.
fn paths(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (begin, _) in code.match_indices("crate::") {
        write_out("", &code[begin + "crate::".len()..], &mut found);
    }
    found
}

/// Writes out one path or braced list; answers what comes behind it.
fn write_out<'a>(prefix: &str, text: &'a str, found: &mut BTreeSet<String>) -> &'a str {
    let Some(mut rest) = text.strip_prefix('{') else {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let path = format!("{prefix}{name}");
        if let Some(rest) = rest.strip_prefix("::") {
            return write_out(&format!("{path}::"), rest, found);
        }
        found.insert(path);
        return rest;
    };
    loop {
        rest = rest.trim_start_matches([',', ' ', '\n']);
        match rest.strip_prefix('}') {
            Some(behind) => return behind,
            None => rest = write_out(prefix, rest, found),
        }
        let next = rest.find([',', '}']).expect("a braced list ends");
        rest = &rest[next..];
    }
}

#[test]
fn paths_in_braces_are_written_out() {
    let code =
        "use crate::{\n    job::{Job, State as S},\n    time,\n};\nfn f() -> crate::error::Result<()> {}";
    let expected = ["error::Result", "job::Job", "job::State", "time"].map(str::to_owned);
    assert_eq!(paths(code), BTreeSet::from(expected));
}

/// Core knows values.
#[test]
fn core_files_know_no_store_and_no_runtime() {
    for (_, source) in layered().iter().filter(|(layer, _)| layer == "core") {
        let code = source.code();
        assert!(!code.contains("tokio"), "{} uses tokio", source.path);
        assert!(!code.contains("async "), "{} is asynchronous", source.path);
        for path in paths(&code) {
            assert!(path.starts_with("core::"), "{} uses {path}", source.path);
        }
    }
}

/// The names at the root of the crate: each name of a `pub use`, and each public module that the docs show.
fn root_names(lib: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    // What a module holds is indented.
    for (begin, _) in lib.match_indices("\npub use ") {
        let (used, _) = lib[begin + "\npub use ".len()..].split_once(';').expect("an item ends");
        let mut paths = BTreeSet::new();
        write_out("", used, &mut paths);
        names.extend(paths.iter().filter_map(|path| path.rsplit("::").next()).map(str::to_owned));
    }
    for (begin, _) in lib.match_indices("\npub mod ") {
        if !lib[..begin].ends_with("#[doc(hidden)]") {
            let (module, _) =
                lib[begin + "\npub mod ".len()..].split_once(['{', ';']).expect("a module has a body");
            names.insert(module.trim().to_owned());
        }
    }
    names
}

/// A newcomer's first look: what a first program needs, and modules by task.
#[test]
fn the_root_of_the_crate_holds_thirty_names_at_most() {
    let lib = fs::read_to_string(library().join("src/lib.rs")).unwrap();
    let names = root_names(&lib);
    assert!(names.contains("Client") && names.contains("store"), "{names:?}");
    assert!(names.len() <= ROOT_NAMES_MAX, "{} names: {names:?}", names.len());
}

/// There is no release yet: `cargo install` finds the program in a clone only.
#[test]
fn commands_that_install_name_a_clone() {
    let mut pages = files(&workspace().join("docs"), &["md"]);
    pages.push(Source {
        path: "README.md".to_owned(),
        text: fs::read_to_string(workspace().join("README.md")).unwrap(),
    });
    let commands = pages.iter().flat_map(|page| page.text.lines().map(move |line| (page, line)));
    let commands: Vec<_> = commands.filter(|(_, line)| line.starts_with("cargo install ")).collect();
    assert!(!commands.is_empty());
    for (page, line) in commands {
        assert!(line.contains(" --path "), "{}: {line}", page.path);
    }
}

/// Stores know nothing of handlers and workers.
#[test]
fn store_files_know_no_runtime() {
    for (_, source) in layered().iter().filter(|(layer, _)| layer == "store") {
        for path in paths(&source.code()) {
            let layer = path.split("::").next().unwrap_or_default();
            assert!(matches!(layer, "core" | "store"), "{} uses {path}", source.path);
        }
    }
}

/// The runtime knows stores as `dyn Store`: `store/url.rs` opens them, and `runtime/testing.rs` makes one in memory.
#[test]
fn runtime_files_name_no_concrete_store() {
    for (_, source) in layered().iter().filter(|(layer, _)| layer == "runtime") {
        if source.path == "runtime/testing.rs" {
            continue;
        }
        assert_eq!(concrete_stores(&source.code()), BTreeSet::new(), "{}", source.path);
    }
}

/// What code names of a concrete store: its type, its driver, its module.
fn concrete_stores(code: &str) -> BTreeSet<String> {
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    let mut found: BTreeSet<String> = words
        .filter(|word| ["MemoryStore", "SqliteStore", "RedisStore", "rusqlite", "redis"].contains(word))
        .map(str::to_owned)
        .collect();
    found.extend(paths(code).into_iter().filter(|path| {
        let mut steps = path.split("::");
        steps.next() == Some("store") && matches!(steps.next(), Some("memory" | "model" | "redis" | "sqlite"))
    }));
    found
}

#[test]
fn a_concrete_store_is_recognised_by_its_type_its_driver_and_its_module() {
    assert_eq!(concrete_stores("use crate::store::{Store, lease::Lease};"), BTreeSet::new());
    for code in ["let a: RedisStore;", "redis::cmd(\"PING\")", "use crate::{store::sqlite::X};"] {
        assert_ne!(concrete_stores(code), BTreeSet::new(), "{code}");
    }
}

// ── rooms ──

/// The verbs of a store: each store has a file or a folder of this name for each, and nothing else, in `verbs/`.
const VERBS: [&str; 10] =
    ["act", "doc", "enqueue", "extend", "queue", "read", "reserve", "settle", "sweep", "take"];

/// What each store keeps besides its jobs, in `state/`.
const STATE: [&str; 4] = ["groups", "keys", "limits", "places"];

/// What stands in a folder: the names of its files and folders, without extensions.
fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn each_store_has_a_file_for_each_verb() {
    for store in ["model", "sqlite", "redis", "redis/lua"] {
        let folder = library().join("src/store").join(store).join("verbs");
        assert_eq!(names_in(&folder), BTreeSet::from(VERBS.map(str::to_owned)), "{}", folder.display());
    }
}

/// On Redis, only scripts know what a job's state counts against.
#[test]
fn each_store_has_a_file_for_each_part_of_the_state() {
    for store in ["model", "sqlite", "redis/lua"] {
        let folder = library().join("src/store").join(store).join("state");
        let names = names_in(&folder);
        for part in STATE {
            assert!(names.contains(part), "{} has no {part}", folder.display());
        }
    }
}

/// The numbers that a Lua source defines: `local NAME, OTHER = 1, 2`.
fn numbers_in(lua: &str) -> Vec<String> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    let mut found = Vec::new();
    for line in lua.lines() {
        let Some((names, values)) =
            line.trim_start().strip_prefix("local ").and_then(|it| it.split_once(" = "))
        else {
            continue;
        };
        let values = values.split("--").next().unwrap_or_default();
        for (name, value) in names.split(", ").zip(values.split(", ")) {
            if is_name(name) && value.trim().starts_with(|c: char| c.is_ascii_digit()) {
                found.push(name.to_owned());
            }
        }
    }
    found
}

/// A number that scripts share is defined once; one that Rust knows comes from Rust, as `$NAME` (`constants()` in `scripts.rs`).
#[test]
fn no_constant_of_a_script_is_typed_twice() {
    assert_eq!(numbers_in("local A, B = 1, $B -- 2\n    local C = 2 ^ 52"), ["A", "C"]);
    let redis = library().join("src/store/redis");
    let generated: BTreeSet<String> = fs::read_to_string(redis.join("scripts.rs"))
        .unwrap()
        .split("(\"")
        .filter_map(|rest| rest.split_once("\", "))
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        .collect();
    assert!(generated.contains("SPARE"), "{generated:?}");
    let mut typed = BTreeMap::new();
    for Source { path, text } in files(&redis.join("lua"), &["lua"]) {
        for name in numbers_in(&text) {
            assert!(!generated.contains(&name), "{path} types {name}, which scripts.rs generates");
            let before = typed.insert(name.clone(), path.clone());
            assert_eq!(before, None, "{path} types {name}, as another script does");
        }
    }
}

// ── time ──

/// S14: below the runtime, time is an argument or a clock's answer.
#[test]
fn nothing_below_the_runtime_reads_ambient_time() {
    let mut used = BTreeSet::new();
    for (_, source) in layered().iter().filter(|(layer, _)| layer != "runtime") {
        let code = source.code();
        if ["SystemTime::now", "Instant::now", ".elapsed()"].iter().any(|ambient| code.contains(ambient)) {
            used.insert(source.path.clone());
        }
    }
    assert_eq!(used, AMBIENT_TIME.iter().map(|(path, _)| (*path).to_owned()).collect());
}

/// Files whose `select!` may choose by chance, since no simulation runs them: they have threads of their own, or drivers.
const CHANCE: [&str; 4] =
    ["runtime/worker/health.rs", "runtime/worker/signals.rs", "store/redis", "store/sqlite"];

/// Simulated fleets repeat exactly only if no `select!` chooses by chance.
#[test]
fn no_select_chooses_by_chance_where_fleets_are_simulated() {
    let mut seen = 0;
    for (_, Source { path, text }) in layered() {
        if CHANCE.iter().any(|file| path.starts_with(file)) {
            continue;
        }
        let (code, _) = text.split_once("\n#[cfg(test)]\nmod tests").unwrap_or((&text, ""));
        for (begin, _) in code.match_indices("select! {") {
            let inside = code[begin + "select! {".len()..].trim_start();
            assert!(inside.starts_with("biased;"), "{path}: {}", inside.lines().next().unwrap_or_default());
            seen += 1;
        }
    }
    assert!(10 < seen, "{seen}");
}

// ── size ──

/// A field or a level can be added to them without breaking those who read them.
#[test]
fn answers_of_a_store_that_may_grow_are_non_exhaustive() {
    let read = |file: &str| fs::read_to_string(library().join("src").join(file)).unwrap();
    let text = read("store.rs") + &read("store/read.rs") + &read("store/doctor.rs");
    for name in ["struct Histogram", "struct Swept", "enum Durability", "enum CheckLevel"] {
        let (before, _) = text.split_once(&format!("pub {name} {{\n")).unwrap();
        let (_, attributes) = before.rsplit_once("\n\n").unwrap();
        assert!(attributes.lines().any(|line| line == "#[non_exhaustive]"), "{name}");
    }
}

#[test]
fn no_file_is_longer_than_a_thousand_lines() {
    for Source { path, text } in files(&workspace().join("crates"), &["rs", "lua", "sql"]) {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{path} has {lines} lines");
    }
}

/// A package holds what its code includes, its README and its licences: what lies beside it is not there when it is built elsewhere.
#[test]
fn each_package_holds_what_it_is_built_of() {
    for package in fs::read_dir(workspace().join("crates")).unwrap() {
        let package = package.unwrap().path();
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(package.join(file).is_file(), "{} lies in {}", file, package.display());
        }
        let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("\nreadme = \"README.md\"\n"), "{}", package.display());
        let left_out = manifest.split_once("\nexclude = [\"").and_then(|(_, rest)| rest.split('"').next());
        for folder in ["src", "tests", "examples", "benches"].map(|name| package.join(name)) {
            for source in folder.is_dir().then(|| sources(&folder)).into_iter().flatten() {
                // Up from a file in a folder of the package, once for each folder that it lies in.
                let depth = source.path.matches('/').count() + 1;
                let is_left_out =
                    left_out.is_some_and(|path| folder.join(&source.path).starts_with(package.join(path)));
                // Tests are not built from the package, and may lean on those of others.
                let is_built = folder.ends_with("src") && !is_left_out;
                let texts = source.text.split("include_str!(\"").skip(1);
                let modules = source.text.split("#[path = \"").skip(1).filter(|_| is_built);
                for included in texts.chain(modules) {
                    let included = included.split('"').next().unwrap();
                    let up = included.matches("../").count();
                    assert!(up <= depth, "{}/{} includes {included}", folder.display(), source.path);
                }
            }
        }
    }
}
