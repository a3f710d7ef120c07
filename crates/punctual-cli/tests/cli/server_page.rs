//! The examples of the page about the server: each call is answered as the page says.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::{fixture::Cli, serve::Served};

/// A request of the page, and its answer there.
#[derive(Debug, Default)]
struct Example {
    method: String,
    /// After `/api/v1/`.
    path: String,
    headers: String,
    body: String,
    /// Whether the answer is printed with its head.
    has_head: bool,
    answer: String,
}

/// The words of the command at the start of a text, as a shell reads them, and what follows it.
fn words(text: &str) -> (Vec<String>, &str) {
    let (mut words, mut quote) = (vec![String::new()], None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '\n') => return (words, &text[at + 1..]),
            (None, ' ') => words.push(String::new()),
            (None, '\'' | '"') => quote = Some(c),
            (Some(of), c) if of == c => quote = None,
            _ => words.last_mut().unwrap().push(c),
        }
    }
    panic!("the command does not end: {text}");
}

fn example(text: &str) -> Example {
    let (words, rest) = words(text);
    let answer = rest.split("```").next().unwrap().trim_end_matches("$ ").to_owned();
    let mut example = Example { answer, ..Example::default() };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-i" => example.has_head = true,
            "-X" => example.method = words.next().unwrap(),
            "-H" => example.headers += &(words.next().unwrap() + "\r\n"),
            "-d" | "--data-binary" => example.body = words.next().unwrap(),
            url => example.path = String::from(url.strip_prefix("$API/").unwrap()),
        }
    }
    if example.method.is_empty() {
        example.method = String::from(if example.body.is_empty() { "GET" } else { "POST" });
    }
    example
}

/// The examples that call the API. Others are of other addresses.
fn examples(page: &str) -> Vec<Example> {
    let texts = page.split("$ curl ").skip(1);
    // A stream of events has no end.
    let is_of_api = |line: &str| line.contains("$API/") && !line.starts_with("-N ");
    texts.filter(|text| is_of_api(text.lines().next().unwrap())).map(example).collect()
}

pub(crate) fn post(url: &str, call: &str, body: &str) -> String {
    let answer = send(url, "POST", call, "", body);
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Sends a request to the API, and returns the answer with its head. Each of the headers has its end of line.
pub(crate) fn send(url: &str, method: &str, path: &str, headers: &str, body: &str) -> String {
    send_to(url, method, &format!("/api/v1/{path}"), headers, body)
}

/// The same, to any path.
pub(crate) fn send_to(url: &str, method: &str, path: &str, headers: &str, body: &str) -> String {
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of the last field of this name, if there is one.
fn last<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = answer.rsplit_once(&format!("\"{name}\":"))?;
    Some(rest.split([',', '}']).next()?.trim_matches('"'))
}

/// An answer without white space, and with one number for all instants, and for versions of documents: these are also those of entries
/// of the activity log.
fn plain(answer: &str) -> String {
    let mut plain = String::new();
    let mut digits = String::new();
    for c in answer.chars().filter(|c| !c.is_whitespace()).chain(['\n']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let is_version = plain.ends_with("\"generation\":") || plain.ends_with("\"version\":");
        let is_any = digits.len() == 13 || (is_version && !digits.is_empty());
        plain.push_str(if is_any { "0" } else { &digits });
        digits.clear();
        plain.push(c);
    }
    plain.trim_end().to_owned()
}

#[test]
fn each_call_of_the_page_is_answered_as_there() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/server.md");
    let page = fs::read_to_string(page).unwrap();
    let served = Served::start(Cli::new(), "");
    // Ids and fences of the page, and those of this run.
    let mut same: Vec<(String, String)> = Vec::new();
    let examples = examples(&page);
    assert_eq!(examples.len(), 44);
    for Example { method, path, headers, body, has_head, answer } in examples {
        let of_run = |text: String| same.iter().fold(text, |text, (page, run)| text.replace(page, run));
        let (path, body) = (of_run(path), of_run(body).replace("\"at_most_ms\":20000", "\"at_most_ms\":1"));
        let got = send(&served.url, &method, &path, &headers, &body);
        let got = if has_head { got } else { got.split_once("\r\n\r\n").unwrap().1.to_owned() };
        let makes = matches!(path.as_str(), "enqueue" | "reserve") || (method == "POST" && path == "jobs");
        for name in ["id", "fence"].into_iter().filter(|_| makes) {
            let values = last(&answer, name).zip(last(&got, name));
            same.extend(values.map(|(page, run)| (page.to_owned(), run.to_owned())));
        }
        same.retain(|(page, _)| page.len() > 10);
        let got = same.iter().fold(got, |got, (page, run)| got.replace(run, page));
        let plain_got = plain(&got);
        let mut rest = plain_got.as_str();
        for part in plain(&answer).split('…').map(|part| part.trim_matches(',')) {
            let found = rest.split_once(part);
            rest = found.unwrap_or_else(|| panic!("{method} {path} {body}: {part:?} is not in {rest}")).1;
        }
    }
}
