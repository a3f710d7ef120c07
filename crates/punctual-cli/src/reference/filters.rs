//! `filters.md`: the fields of a filter, from the table with which the library reads them.

use clap::CommandFactory as _;
use punctual::{
    Priority,
    job::Filter,
    limits::{FILTER_BYTES_MAX, FILTER_STARS_MAX, FILTER_STEPS_MAX, FILTER_TERMS_MAX},
    reference::{FIELDS, Field, Takes, UNITS, signs, states},
};

use super::{check, code, codes, row, size, table};
use crate::args::Args;

/// Filters of several terms.
const WHOLE: [(&str, &str); 6] = [
    ("state:dead kind:email.* failed:>2h", "Dead jobs of some kinds that failed more than two hours ago."),
    ("queue:mail,bulk -tag:vip", "Jobs of two queues, without those that have the tag `vip`."),
    ("state:retrying error:\"421 try later\"", "Jobs that wait after this error."),
    ("queue:mail due:<-5m", "Jobs of a queue that are overdue by more than five minutes."),
    ("created:>1h created:<2h", "Jobs that were enqueued between one and two hours ago."),
    ("payload.user.id:42 -state:done,cancelled", "Jobs for one user that are neither done nor cancelled."),
];

/// A field as it is written.
fn written(field: &Field) -> &'static str {
    if field.takes == Takes::Json { "payload.PATH" } else { field.name }
}

/// What may follow the colon.
fn values(takes: Takes) -> String {
    match takes {
        Takes::State => "a state ([below](#states))".to_owned(),
        Takes::Name => "a name; `*` stands for any text".to_owned(),
        Takes::Id => "an id, or 6 or more hexadecimal digits of its beginning or end".to_owned(),
        Takes::Priority => codes(Priority::ALL) + ", or 0, 1, 2",
        Takes::Number => "a number, alone or after a sign".to_owned(),
        Takes::Ahead => "a sign and a time from now; a time before now has a `-`".to_owned(),
        Takes::Ago => "a sign and a time".to_owned(),
        Takes::Text => "a text".to_owned(),
        Takes::Json => "a text, a number, `true`, `false` or `null`; `*` stands for any text".to_owned(),
    }
}

fn page() -> String {
    let head = row(["field", "a job matches if", "values", "examples"]);
    let fields = FIELDS.iter().map(|field| {
        [code(written(field)), field.matches.to_owned(), values(field.takes), codes(field.examples)]
    });
    let states = states().map(|(name, meaning)| [code(name), meaning.to_owned()]);
    let signs = signs().map(|(sign, meaning)| [code(sign), meaning.to_owned()]);
    let whole = WHOLE.map(|(filter, meaning)| [code(filter), meaning.to_owned()]);
    let mut units = UNITS.map(|(unit, _)| unit);
    units.reverse();
    format!(
        "# Filters

A filter selects jobs. `punctual ls` takes one as its arguments. `cancel`, `reschedule`, `run-now`, `retry`, `reprioritise`, `edit` and
`delete` take one with `--where`. In a program, it is `Filter::parse`.

```sh
punctual ls state:dead 'kind:email.*' 'failed:>2h'
punctual retry --where 'state:dead kind:email.* failed:>2h' --dry-run
```

A shell reads `*`, `<`, `>` and `\"` itself. Put such terms in single quotes.

## Terms

A term is `field:value`, without a space after the colon.

* A job matches if it matches **all** terms.
* A term with several values, as in `state:dead,retrying`, matches if **one** of the values does.
* A `-` before a term excludes the jobs that match it, as in `-tag:vip`.
* Two terms can have the same field, as in `created:>1h created:<2h`.
* The empty filter matches every job. `--where` refuses it.
* Put a value in `\"…\"` if it has spaces or commas, or begins with `<` or `>`. In quotes, `*` is a plain character. Write `\\\"` for a quote
  and `\\\\` for a backslash.
* Upper and lower case differ, except in ids.
* A filter has at most {terms} terms, {stars} values with `*`, and {bytes}.

There is no OR between terms. Use a list of values, or two commands.

## Fields

{fields}A job without such a name, instant or value does not match the term. It matches the term with a `-`.

A path has at most {steps} steps with dots between them. A step into an array is an index from 0.

## States

{states}## Comparisons

{signs}Times and numbers are compared. `attempt:3` is the same as exactly 3. Times need a sign.

Times are whole numbers with a unit: {units}. Units can be combined, the longest first, as in `1h30m`.

## Examples

{whole}",
        terms = FILTER_TERMS_MAX,
        stars = FILTER_STARS_MAX,
        bytes = size(FILTER_BYTES_MAX as u64),
        fields = table([head].into_iter().chain(fields)),
        steps = FILTER_STEPS_MAX,
        states = table([row(["state", "meaning"])].into_iter().chain(states)),
        signs = table([row(["sign", "meaning"])].into_iter().chain(signs)),
        units = codes(units),
        whole = table([row(["filter", "jobs"])].into_iter().chain(whole)).trim_end().to_owned() + "\n",
    )
}

#[test]
fn the_page_of_filters_is_what_the_code_says() {
    check("filters.md", &page());
}

#[test]
fn every_example_of_a_filter_is_one() {
    let whole = WHOLE.iter().map(|(filter, _)| *filter);
    for text in FIELDS.iter().flat_map(|field| field.examples).copied().chain(whole) {
        if let Err(error) = Filter::parse(text) {
            panic!("{text}: {error}");
        }
    }
    for field in &FIELDS {
        let begin = if field.takes == Takes::Json { "payload." } else { field.name };
        assert!(!field.examples.is_empty(), "{begin} has no example");
        assert!(field.examples.iter().all(|example| example.starts_with(begin)), "{:?}", field.examples);
    }
    for (state, _) in states() {
        Filter::parse(&format!("state:{state}")).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn ls_names_every_field_and_state() {
    let help = Args::command().find_subcommand("ls").and_then(|ls| ls.get_after_help().cloned());
    let help = help.unwrap_or_default().to_string();
    for name in FIELDS.iter().map(written).chain(states().map(|(name, _)| name)) {
        assert!(help.contains(name), "ls --help does not name {name}");
    }
}

#[test]
fn every_command_with_a_filter_is_named() {
    let page = page();
    for command in Args::command().get_subcommands() {
        let has_filter = command.get_arguments().any(|arg| arg.get_id() == "filter");
        let name = command.get_name();
        assert!(!has_filter || name == "ls" || page.contains(&format!("`{name}`")), "{name} is not named");
    }
}
