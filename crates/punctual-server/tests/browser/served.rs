//! A server to open in a browser.

use punctual::{CancellationToken, Client, NewJob, Payload, testing::TestQueue};
use punctual_server::{
    DashboardOptions, Server,
    token::{self, NewToken, Role},
};
use tokio::runtime::Runtime;

use crate::{chromium::Chromium, site};

/// Most addresses with a search, of which pages have many, that are opened.
const SEARCHES_MAX: usize = 12;

/// A server on a port of its own, under a base path.
pub(crate) struct Served {
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    pub(crate) stop: CancellationToken,
    pub(crate) url: String,
    queue: TestQueue,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Served {
    pub(crate) fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let queue = TestQueue::new();
        let client = queue.client.clone();
        let (stop, (send, ready)) = (CancellationToken::new(), std::sync::mpsc::channel());
        let options = DashboardOptions { base_path: "/q".to_owned(), ..DashboardOptions::default() };
        let (server, ends) = (Server::new(&client).dashboard(options), stop.clone());
        runtime.spawn(async move {
            let addr = "127.0.0.1:0".parse().unwrap();
            server.serve(addr, &ends, move |addr| send.send(addr).unwrap()).await.unwrap();
        });
        let url = format!("http://{}/q", ready.recv().unwrap());
        Self { runtime, client, stop, url, queue }
    }

    /// Enqueues a job, and returns its id.
    pub(crate) fn push(&self, kind: &str) -> punctual::JobId {
        let job = NewJob::new(self.client.make_id(), kind, "mail", Payload::json("1"));
        self.runtime.block_on(self.client.push(vec![job])).unwrap()[0].id().unwrap()
    }

    /// Fills a queue of this name with jobs in every state, whose texts all contain it.
    pub(crate) fn fill(&self, text: &str) {
        self.runtime.block_on(site::fill(&self.queue, text));
    }

    /// Makes a token with a role, and logs in with it.
    pub(crate) fn log_in(&self, browser: &mut Chromium, role: Role) {
        let new = NewToken::new(role.name(), role);
        let made = self.runtime.block_on(token::make(&self.client, &new, token::random().unwrap())).unwrap();
        browser.open(&format!("{}/login", self.url));
        let secret = serde_json::json!(made.secret.expose());
        browser.eval(&format!("document.querySelector('[name=token]').value = {secret}"));
        browser.eval("document.querySelector('main form').requestSubmit()");
        browser.until(&format!("location.href === '{}' && document.readyState === 'complete'", self.url));
    }

    /// All addresses that pages link to under the base path, from the overview on, up to a number.
    pub(crate) fn crawl(
        &self,
        browser: &mut Chromium,
        most: usize,
        mut see: impl FnMut(&mut Chromium, &str),
    ) -> usize {
        let mut urls = vec![self.url.clone()];
        let mut at = 0;
        while at < urls.len().min(most) {
            let url = urls[at].clone();
            browser.open(&url);
            see(browser, &url);
            let links = "[...document.querySelectorAll('a[href]')].map(a => a.href.split('#')[0])";
            for link in browser.eval(links).as_array().unwrap() {
                let link = link.as_str().unwrap();
                let searches = urls.iter().filter(|own| own.contains('?')).count();
                let is_one_more = !link.contains('?') || searches < SEARCHES_MAX;
                if link.starts_with(&self.url) && is_one_more && !urls.iter().any(|own| own == link) {
                    urls.push(link.to_owned());
                }
            }
            at += 1;
        }
        at
    }
}
