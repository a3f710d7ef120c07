//! Tests of the texts that `--help` prints: each command has examples that its own parser accepts, and each default is named.

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use crate::args::Args;

/// Columns of an indented line: an example, or a row of a table. Longer lines would be wrapped.
const INDENTED_COLUMNS_MAX: usize = 110;

/// All commands that people can see, with the words that lead to each.
pub(crate) fn commands() -> Vec<(Vec<String>, Command)> {
    fn add(path: &[String], command: &Command, found: &mut Vec<(Vec<String>, Command)>) {
        found.push((path.to_vec(), command.clone()));
        let shown = |sub: &&Command| !sub.is_hide_set() && sub.get_name() != "help";
        for sub in command.get_subcommands().filter(shown) {
            let path: Vec<String> = path.iter().cloned().chain([sub.get_name().to_owned()]).collect();
            add(&path, sub, found);
        }
    }
    let mut root = Args::command();
    root.build();
    let mut found = Vec::new();
    add(&["punctual".to_owned()], &root, &mut found);
    found
}

/// The lines of a command's examples.
fn examples(command: &Command) -> Vec<String> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let examples = text.split_once("Examples:\n").map(|(_, examples)| examples.to_owned());
    examples.unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The words of a command line, up to its first `&&`, `|`, `<`, `>` or comment. `$(…)` is one word.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut depth) = (Vec::new(), None::<String>, None, 0);
    for c in line.chars() {
        let text = || word.clone().unwrap_or_default();
        match (quote, c) {
            (Some(q), c) if q == c && depth == 0 => quote = None,
            (None, '\'' | '"') if depth == 0 => {
                (quote, word) = (Some(c), Some(text()));
            }
            (None, ' ') if depth == 0 => words.extend(word.take()),
            (None, '&' | '|' | '<' | '>' | '#') if depth == 0 && word.is_none() => return words,
            (None, c) => {
                depth += i32::from(c == '(' && (0 < depth || text().ends_with('$')));
                depth -= i32::from(c == ')' && 0 < depth);
                word.get_or_insert_default().push(c);
            }
            (Some(_), c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The command lines in `$(…)` of a line.
fn inner(line: &str) -> impl Iterator<Item = &str> {
    line.split("$(").skip(1).filter_map(|rest| rest.split_once(')')).map(|(inner, _)| inner)
}

#[test]
fn a_line_is_split_as_a_shell_splits_it() {
    let line = r#"punctual push k '{"to":"a b"}' $(punctual ls -o ids) > x # y"#;
    assert_eq!(words(line), ["punctual", "push", "k", r#"{"to":"a b"}"#, "$(punctual ls -o ids)"]);
    assert_eq!(inner(line).collect::<Vec<_>>(), ["punctual ls -o ids"]);
    assert_eq!(words("punctual x && y"), ["punctual", "x"]);
}

#[test]
fn every_command_has_examples_that_it_accepts() {
    for (path, command) in commands() {
        let (name, examples) = (path.join(" "), examples(&command));
        assert!((2..=3).contains(&examples.len()), "{name} --help must end with two or three examples");
        for line in &examples {
            let example = line.strip_prefix("  ").unwrap_or_default();
            assert!(
                format!("{example} ").starts_with(&format!("{name} ")),
                "{name}: not an example of it: {line:?}"
            );
            for line in inner(example).chain([example]) {
                if let Err(error) = Args::command().try_get_matches_from(words(line)) {
                    panic!("{name}: {line}\n{error}");
                }
            }
        }
    }
}

#[test]
fn no_indented_line_is_wrapped() {
    for (path, command) in commands() {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in text.lines().filter(|line| line.starts_with(' ')) {
            let columns = line.chars().count();
            assert!(columns <= INDENTED_COLUMNS_MAX, "{}: {columns} columns in {line:?}", path.join(" "));
        }
    }
}

#[test]
fn every_command_and_option_is_described() {
    for (path, command) in commands() {
        let name = path.join(" ");
        assert!(command.get_about().is_some(), "{name} has no description");
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some(), "{name}: {} has no description", arg.get_id());
        }
    }
}

/// A text without what people write into numbers and units.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | ',' | '`')).collect()
}

#[test]
fn every_default_is_named_in_the_same_form() {
    let has_value = |arg: &&Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    for (path, command) in commands() {
        for arg in command.get_arguments().filter(has_value) {
            let name = format!("{} {}", path.join(" "), arg.get_id());
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let defaults = arg.get_default_values();
            assert!(
                defaults.is_empty() || arg.is_hide_default_value_set(),
                "{name}: clap names its default, too"
            );
            for default in defaults.iter().filter(|default| !default.is_empty()) {
                let named = format!("(default:{})", default.to_string_lossy());
                assert!(plain(&help).contains(&named), "{name}: {named} is missing in {help:?}");
            }
        }
    }
}
