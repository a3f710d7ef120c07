//! A Chromium without a window, driven over a pipe by the `DevTools` protocol: messages in JSON, each ended by a zero byte.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// How long an answer, or what a page is to show, may take.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

pub(crate) struct Chromium {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    number: u64,
    session: Option<String>,
    /// What the pages complained of.
    pub(crate) complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Chromium {
    /// Starts one. `None` where there is none, which fails in CI.
    pub(crate) fn start() -> Option<Self> {
        let is_there = Command::new("chromium").arg("--version").stdout(Stdio::null()).status();
        if !is_there.is_ok_and(|status| status.success()) {
            eprintln!("MISSING: there is no chromium, so the pages were not tried in a browser");
            assert!(std::env::var_os("CI").is_none(), "CI needs chromium");
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        // It reads from descriptor 3 and writes to 4.
        let mut child = Command::new("sh")
            .args([
                "-c",
                "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe \
                 --user-data-dir=\"$0\" about:blank 3<&0 4>&1 >/dev/null",
            ])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (to, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, from) = channel();
        thread::spawn(move || {
            for message in BufReader::new(out).split(0).map_while(Result::ok) {
                if send.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut own =
            Self { child, to, from, number: 0, session: None, complaints: vec![], _profile: profile };
        let target = own.call("Target.createTarget", &json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let session = own.call("Target.attachToTarget", &target);
        own.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            own.call(domain, &json!({}));
        }
        // Colours that fade are neither the old nor the new ones.
        let still = json!({"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]});
        own.call("Emulation.setEmulatedMedia", &still);
        Some(own)
    }

    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut reply =
                self.from.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {method}"));
            if reply["id"] == self.number {
                // The page went while the expression was evaluated: it has no value.
                if reply["error"]["message"].as_str().is_some_and(|text| text.contains("navigated")) {
                    return Value::Null;
                }
                assert!(reply["error"].is_null(), "{method}: {reply}");
                return reply["result"].take();
            }
            let is_complaint = match reply["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                // Of the content security policy, among others.
                Some("Log.entryAdded") => reply["params"]["entry"]["level"] == "error",
                _ => false,
            };
            if is_complaint {
                self.complaints.push(reply["params"].to_string());
            }
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({"url": url}));
        self.until(&format!("document.readyState === 'complete' && location.href === {}", json!(url)));
    }

    /// Evaluates an expression on the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        self.evaluate(&json!({"expression": expression, "returnByValue": true}))
    }

    /// Evaluates an expression whose value is a promise, and waits for it.
    pub(crate) fn settled(&mut self, expression: &str) -> Value {
        self.evaluate(&json!({"expression": expression, "returnByValue": true, "awaitPromise": true}))
    }

    fn evaluate(&mut self, params: &Value) -> Value {
        let mut result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{params}: {result}");
        result["result"]["value"].take()
    }

    /// Sets the width of the page in CSS pixels.
    pub(crate) fn width(&mut self, width: u32) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Waits until an expression is true on the page.
    pub(crate) fn until(&mut self, expression: &str) {
        let begin = Instant::now();
        while self.eval(expression) != true {
            if PATIENCE < begin.elapsed() {
                let text = self.eval("document.body.innerText");
                panic!("never true: {expression}\n{text}\n{:?}", self.complaints);
            }
            thread::sleep(POLL);
        }
    }

    /// Presses a key with a printed character.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", &json!({"type": kind, "key": key, "text": key}));
        }
    }
}
