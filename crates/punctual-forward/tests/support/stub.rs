//! A receiver of webhooks: a small server of HTTP/1.1 on a port of its own, which answers what it is told to and remembers what it
//! was asked.
#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Takes the request and answers nothing, ever.
pub(crate) const SILENCE: &str = "";

/// What it was asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// The value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find_map(|(given, value)| (given == name).then_some(value.as_str()))
    }
}

/// A running server, which ends when it is dropped.
pub(crate) struct Stub {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    server: JoinHandle<()>,
}

impl Stub {
    /// Answers the first request by the first answer, and so on; the last one is given to all that follow. An answer is a
    /// status with its reason, then headers and a body, as `200 OK\r\n\r\nbody`.
    pub(crate) async fn start(answers: &[&str]) -> Self {
        let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
        Self::answering(move |requests| answers[(requests.len() - 1).min(answers.len() - 1)].clone()).await
    }

    /// Answers each request by what there was so far, itself the last.
    pub(crate) async fn answering(answer: impl Fn(&[Request]) -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let server = tokio::spawn(async move {
            let mut silent = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = BufReader::new(stream);
                let Some(request) = read(&mut stream).await else { continue };
                let answer = {
                    let mut seen = seen.lock().unwrap();
                    seen.push(request);
                    answer(&seen)
                };
                match answer.as_str() {
                    SILENCE => silent.push(stream),
                    answer => {
                        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
                        let length = body.len();
                        let answer = format!(
                            "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                        );
                        drop(stream.write_all(answer.as_bytes()).await);
                    }
                }
            }
        });
        Self { port, requests, server }
    }

    /// Where it listens.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// What it was asked so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Reads a request; `None` from who only connects.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut request = Request::default();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line if request.line.is_empty() => line.clone_into(&mut request.line),
            line => {
                let (name, value) = line.split_once(':')?;
                request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
    }
    let length = request.header("content-length").map_or(0, |text| text.parse().unwrap());
    request.body.resize(length, 0);
    stream.read_exact(&mut request.body).await.ok()?;
    Some(request)
}
