//! The examples of the page about the server: each call is answered as the page says.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::{fixture::Cli, serve::Served};

/// A call of the page, and its answer there.
struct Example<'a> {
    call: &'a str,
    body: &'a str,
    answer: &'a str,
}

fn examples(page: &str) -> Vec<Example<'_>> {
    let of = |text| {
        let (call, rest) = str::split_once(text, " -d '").unwrap();
        let (body, rest) = rest.split_once("'\n").unwrap();
        let answer = rest.split("```").next().unwrap().trim_end_matches("$ ");
        Example { call, body, answer }
    };
    let texts = page.split("curl $API/").skip(1);
    texts.map(of).collect()
}

pub(crate) fn post(url: &str, call: &str, body: &str) -> String {
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let (length, path) = (body.len(), format!("/api/v1/{call}"));
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The value of the last field of this name, if there is one.
fn last<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = answer.rsplit_once(&format!("\"{name}\":"))?;
    Some(rest.split([',', '}']).next()?.trim_matches('"'))
}

/// An answer without white space, and with one number for all instants.
fn plain(answer: &str) -> String {
    let mut plain = String::new();
    let mut digits = String::new();
    for c in answer.chars().filter(|c| !c.is_whitespace()).chain(['\n']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        plain.push_str(if digits.len() == 13 { "0" } else { &digits });
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
    assert_eq!(examples.len(), 14);
    for Example { call, body, answer } in examples {
        let body = same.iter().fold(body.to_owned(), |body, (page, run)| body.replace(page, run));
        let got = post(&served.url, call, &body.replace("\"at_most_ms\":20000", "\"at_most_ms\":1"));
        for name in ["id", "fence"].into_iter().filter(|_| matches!(call, "enqueue" | "reserve")) {
            let values = last(answer, name).zip(last(&got, name));
            same.extend(values.map(|(page, run)| (page.to_owned(), run.to_owned())));
        }
        same.retain(|(page, _)| page.len() > 10);
        let got = same.iter().fold(got, |got, (page, run)| got.replace(run, page));
        let plain_got = plain(&got);
        let mut rest = plain_got.as_str();
        for part in plain(answer).split('…').map(|part| part.trim_matches(',')) {
            let found = rest.split_once(part);
            rest = found.unwrap_or_else(|| panic!("{call} {body}: {part:?} is not in {rest}")).1;
        }
    }
}
