//! A whole shop: orders that close unless they are paid, mail, webhooks, notifications, a nightly report and exports.
//!
//! Read it from top to bottom: the jobs, the orders, the handlers, the worker, the program; then the tests, in which no time passes.
//!
//! ```sh
//! cargo run -p punctual --example shop      # the jobs are in shop.db, beside the orders
//! PUNCTUAL_STORE=redis://localhost cargo run -p punctual --example shop --features redis
//! cargo test -p punctual --example shop
//! ```

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use punctual::{
    CancellationToken, Client, Ctx, Job, Outcome, Worker,
    client::Enqueue,
    schedule::Cron,
    store::{
        UniqueKey,
        sqlite::{
            Notification,
            rusqlite::{Connection, OptionalExtension, Params, Row, TransactionBehavior},
        },
    },
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

// ── The jobs: what is to be done, in which queue, and how often it is tried ──────────────────────────────────────────────────

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "order.close", queue = "orders", unique = "key")]
struct CloseUnpaid {
    order: i64,
}

impl CloseUnpaid {
    /// Finds the job again when the order is paid.
    fn key(&self) -> String {
        self.order.to_string()
    }
}

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "mail.send", queue = "mail", max_attempts = 8, backoff = "exp 5s..6h", timeout = "30s")]
struct Mail {
    to: String,
    text: String,
}

/// Reports a paid order to the partner that ships it.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "order.paid", queue = "webhooks", max_attempts = 20, backoff = "exp 1s..1h")]
struct Webhook {
    order: i64,
}

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "notify", queue = "notifications")]
struct Notify {
    customer: String,
    text: String,
}

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "report", queue = "reports")]
struct Report {}

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "export", queue = "exports", timeout = "10m")]
struct Export {
    rows: u64,
}

// ── The orders: each change of one, and the jobs that follow from it ─────────────────────────────────────────────────────────

/// `told` is the state whose jobs are enqueued.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders \
    (id INTEGER PRIMARY KEY AUTOINCREMENT, customer TEXT, cents INTEGER, state TEXT DEFAULT 'unpaid', told TEXT)";
const PLACE: &str = "INSERT INTO orders (customer, cents) VALUES (?1, ?2) RETURNING id, customer, state";
const PAY: &str =
    "UPDATE orders SET state = 'paid' WHERE id = ?1 AND state = 'unpaid' RETURNING id, customer, state";
const CLOSE: &str =
    "UPDATE orders SET state = 'closed' WHERE id = ?1 AND state = 'unpaid' RETURNING id, customer, state";
const UNTOLD: &str = "SELECT id, customer, state FROM orders WHERE told IS NOT state";
const TOLD: &str = "UPDATE orders SET told = ?2 WHERE id = ?1";
const SALES: &str = "SELECT count(*), coalesce(sum(cents), 0) FROM orders WHERE state = 'paid'";

/// Half an hour, for customers who can wait that long.
const PAY_WITHIN: Duration = Duration::from_secs(2);

struct Order {
    id: i64,
    customer: String,
    state: String,
}

impl Order {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { id: row.get(0)?, customer: row.get(1)?, state: row.get(2)? })
    }

    fn is_paid(&self) -> bool {
        self.state == "paid"
    }

    fn close(&self) -> CloseUnpaid {
        CloseUnpaid { order: self.id }
    }
}

struct Shop {
    client: Client,
    db: Mutex<Connection>,
    /// Whether the jobs are in this database, too: then an order and its jobs change in one transaction.
    has_jobs: bool,
    outside: Outside,
}

impl Shop {
    fn open(client: Client, db: Connection, has_jobs: bool, outside: Outside) -> Result<Arc<Self>, Failure> {
        // What a transaction with jobs in it must have: patience with other writers, and the durability of the store.
        db.busy_timeout(Duration::from_secs(30))?;
        db.pragma_update(None, "synchronous", "full")?;
        db.execute(TABLE, [])?;
        Ok(Arc::new(Self { client, db: Mutex::new(db), has_jobs, outside }))
    }

    /// Never held while something is awaited.
    fn db(&self) -> MutexGuard<'_, Connection> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn place(&self, customer: &str, cents: i64) -> Result<i64, Failure> {
        let order = self.change(PLACE, (customer.to_owned(), cents), None).await?;
        Ok(order.ok_or("an insert returns its row")?.id)
    }

    async fn pay(&self, order: i64) -> Result<(), Failure> {
        self.change(PAY, [order], None).await?.ok_or("it is not there, paid already, or closed")?;
        Ok(())
    }

    /// The jobs that follow from an order's state. A job that is enqueued again with the same key changes nothing.
    fn jobs(&self, order: &Order) -> Vec<Enqueue> {
        let mail =
            |text: &str| Mail { to: order.customer.clone(), text: format!("order {} {text}", order.id) };
        let jobs = match order.state.as_str() {
            "unpaid" => vec![self.client.enqueue(order.close()).delay(PAY_WITHIN)],
            "paid" => {
                vec![self.client.enqueue(mail("is paid")), self.client.enqueue(Webhook { order: order.id })]
            }
            _ => vec![self.client.enqueue(mail("is closed: it was not paid in time"))],
        };
        jobs.into_iter().map(|job| job.idempotency_key(order.id.to_string())).collect()
    }

    /// Changes an order and enqueues what follows. Where the jobs are in the same database, all of it is one transaction, also
    /// the end of the run that it happens in. Elsewhere `told` shows what is missing until `tell` has enqueued it.
    async fn change<P: Params + Send>(
        &self,
        sql: &str,
        args: P,
        run: Option<&Ctx<Arc<Self>>>,
    ) -> Result<Option<Order>, Failure> {
        let order = {
            let mut db = self.db();
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let Some(order) = tx.query_row(sql, args, Order::read).optional()? else { return Ok(None) };
            let mut notifications = Vec::new();
            if self.has_jobs {
                for job in self.jobs(&order) {
                    notifications.push(job.in_tx(&tx)?.1);
                }
                if order.is_paid() {
                    notifications.push(self.client.cancel_in(&tx, UniqueKey::held_by(&order.close())?)?.1);
                }
                if let Some(run) = run {
                    notifications.push(run.settle_in(&tx, Outcome::Done)?);
                }
                tx.execute(TOLD, (order.id, &order.state))?;
            }
            tx.commit()?;
            notifications.into_iter().for_each(Notification::send); // wakes the workers
            order
        };
        self.tell().await?;
        Ok(Some(order))
    }

    /// Enqueues the jobs that are missing, now or when the program starts again: an outbox. Nothing is missing where orders and
    /// jobs are in one database.
    async fn tell(&self) -> Result<(), Failure> {
        let untold: Vec<Order> =
            self.db().prepare(UNTOLD)?.query_map([], Order::read)?.collect::<Result<_, _>>()?;
        for order in untold {
            for job in self.jobs(&order) {
                job.await?;
            }
            if order.is_paid() {
                // Should it run all the same, it finds that the order is paid.
                self.client.cancel(UniqueKey::held_by(&order.close())?).await?;
            }
            self.db().execute(TOLD, (order.id, &order.state))?;
        }
        Ok(())
    }

    // ── The worker: without a queue named it serves those of its handlers' jobs ──────────────────────────────────────────────

    fn worker(self: &Arc<Self>) -> punctual::Result<Worker<Arc<Self>>> {
        let nightly = Cron::new("0 2 * * *")?.in_tz("Europe/Berlin")?;
        Ok(Worker::new(&self.client)
            .state(Arc::clone(self))
            .handle(close)
            .handle(send_mail)
            .handle(call_partner)
            .handle(notify)
            .handle(report)
            .handle(export)
            .queue_slots("exports", 2) // they take long: the other slots are for the others
            .cron("nightly-report", nightly, Report {}))
    }
}

// ── The handlers: plain functions of a job and its context ───────────────────────────────────────────────────────────────────

async fn close(job: CloseUnpaid, ctx: Ctx<Arc<Shop>>) -> Result<(), Failure> {
    ctx.state().change(CLOSE, [job.order], Some(&ctx)).await?; // changes nothing if the order is paid
    Ok(())
}

async fn send_mail(job: Mail, ctx: Ctx<Arc<Shop>>) -> Result<(), Failure> {
    // An error is retried by the type's backoff.
    match ctx.state().outside.post(format!("mail to {}: {}", job.to, job.text)) {
        200 => Ok(()),
        status => Err(format!("the mail server said {status}").into()),
    }
}

async fn call_partner(job: Webhook, ctx: Ctx<Arc<Shop>>) -> Outcome {
    // The id is the same in each attempt, so that the partner can drop what it has already.
    match ctx.state().outside.post(format!("webhook {}: order {} is paid", ctx.id().short(), job.order)) {
        200 => Outcome::Done,
        410 => Outcome::Dead("the partner wants no more".to_owned()),
        429 => Outcome::retry_after(Duration::from_secs(30), "the partner asks for a pause"), // holds up the queue
        status => Outcome::retry(format_args!("the partner said {status}")),
    }
}

async fn notify(job: Notify, ctx: Ctx<Arc<Shop>>) {
    ctx.state().outside.post(format!("to {}: {}", job.customer, job.text));
}

async fn report(_: Report, ctx: Ctx<Arc<Shop>>) -> Result<Outcome, Failure> {
    let sales: (i64, i64) = ctx.state().db().query_row(SALES, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Outcome::done_with(sales)) // kept with the job for a day
}

async fn export(job: Export, ctx: Ctx<Arc<Shop>>) -> Outcome {
    // Goes on where an earlier run was stopped.
    let begin = ctx.record().notes.progress.as_ref().map_or(0, |progress| progress.done);
    for row in begin..job.rows {
        if ctx.cancel_token().is_cancelled() {
            return Outcome::Snooze(Duration::from_secs(1)); // the worker ends: another one goes on
        }
        tokio::task::yield_now().await; // … writes the row …
        ctx.progress(row + 1, job.rows);
    }
    Outcome::done_with(format!("orders.csv with {} rows", job.rows))
}

/// Stands for the servers of others: mail, push messages, the partner. Shows what they are sent, and answers as HTTP does.
struct Outside {
    sent: mpsc::UnboundedSender<String>,
    /// What they say next; 200 where nothing is left.
    answers: Mutex<Vec<u16>>,
}

impl Outside {
    fn new() -> (Self, mpsc::UnboundedReceiver<String>) {
        let (sent, receives) = mpsc::unbounded_channel();
        (Self { sent, answers: Mutex::default() }, receives)
    }

    fn post(&self, text: String) -> u16 {
        let status = self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or(200);
        println!("{status} {text}");
        if status == 200 {
            let _ = self.sent.send(text); // nobody may be listening any more
        }
        status
    }
}

// ── The program: a short day ─────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let own = "sqlite:shop.db";
    let store = std::env::var("PUNCTUAL_STORE").unwrap_or_else(|_| own.to_owned());
    let client = Client::connect(&store).await?;
    let (outside, mut sent) = Outside::new();
    let shop = Shop::open(client.clone(), Connection::open("shop.db")?, store == own, outside)?;
    shop.tell().await?; // what a crash left

    // A program that only works ends here: `shop.worker()?.run().await`, which ends by Ctrl-C.
    let stop = CancellationToken::new();
    let working = tokio::spawn(shop.worker()?.run_until(stop.clone()));

    let (paid, unpaid) = (shop.place("ana", 4_200).await?, shop.place("bo", 900).await?);
    shop.pay(paid).await?;
    // Groups share a queue: however many notifications one customer gets, another waits for one of them at most.
    client.queue("notifications").update(|settings| settings.group.concurrency = Some(1)).await?;
    for (customer, n) in [("ana", 5), ("bo", 1)] {
        let all = (0..n).map(|n| Notify { customer: customer.to_owned(), text: format!("offer {n}") });
        client.enqueue_many(all).each(|job, spec| _ = spec.group(&job.customer)).await?;
    }
    let export = client.enqueue(Export { rows: 1_000 }).await?.id().ok_or("its queue has no cap")?;
    let report = client.enqueue(Report {}).await?.id().ok_or("its queue has no cap")?; // before its time

    for job in [export, report] {
        let job = client.finished(job, Duration::from_mins(1)).await?.ok_or("it is kept for a day")?;
        let result = job.result.ok_or("it gives a result")?;
        println!("{} is {}: {}", job.kind, job.state, String::from_utf8_lossy(&result.bytes));
    }
    // A receipt and a webhook of the paid order, six notifications, and in the end the mail about the order that was not paid.
    let last = format!("mail to bo: order {unpaid} is closed: it was not paid in time");
    let mut n = 1;
    while tokio::time::timeout(Duration::from_mins(1), sent.recv()).await?.ok_or("it is open")? != last {
        n += 1;
    }
    stop.cancel();
    let report = working.await??;
    assert_eq!((n, report.dead), (9, 0));
    println!("checked  {n} messages sent, {} jobs done", report.done);
    Ok(())
}

// ── The tests: a store in memory, a clock that the test advances, and a worker that runs in the test ─────────────────────────

#[cfg(test)]
mod tests {
    use punctual::{State, testing::TestQueue};

    use super::*;

    /// The shop, its clock, and what it sent.
    struct Scene {
        t: TestQueue,
        shop: Arc<Shop>,
        sent: mpsc::UnboundedReceiver<String>,
    }

    impl Scene {
        fn new() -> Result<Self, Failure> {
            let (t, (outside, sent)) = (TestQueue::new(), Outside::new());
            let shop = Shop::open(t.client.clone(), Connection::open_in_memory()?, false, outside)?;
            Ok(Self { t, shop, sent })
        }

        /// Lets time pass, runs what is due, and returns what was sent.
        async fn after(&mut self, time: Duration) -> Result<Vec<String>, Failure> {
            self.t.advance(time);
            self.t.drain(self.shop.worker()?).await?;
            Ok(std::iter::from_fn(|| self.sent.try_recv().ok()).collect())
        }
    }

    #[tokio::test]
    async fn an_order_is_closed_unless_it_is_paid_in_time() -> Result<(), Failure> {
        let mut scene = Scene::new()?;
        let (paid, unpaid) = (scene.shop.place("ana", 4_200).await?, scene.shop.place("bo", 900).await?);
        scene.shop.pay(paid).await?;
        let sent = scene.after(Duration::from_millis(1_999)).await?;
        assert_eq!(sent.len(), 2, "a receipt and a webhook, and nothing is closed early: {sent:?}");
        let sent = scene.after(Duration::from_millis(1)).await?;
        assert_eq!(sent, [format!("mail to bo: order {unpaid} is closed: it was not paid in time")]);
        assert!(scene.shop.pay(unpaid).await.is_err(), "it is too late now");
        Ok(())
    }

    #[tokio::test]
    async fn mail_is_sent_again_until_it_arrives() -> Result<(), Failure> {
        let mut scene = Scene::new()?;
        *scene.shop.outside.answers.lock().unwrap_or_else(PoisonError::into_inner) = vec![503, 503];
        scene.shop.client.enqueue(Mail { to: "ana".to_owned(), text: "hello".to_owned() }).await?;
        assert_eq!(scene.after(Duration::ZERO).await?.len(), 0);
        assert_eq!(scene.after(Duration::from_hours(1)).await?.len(), 0);
        assert_eq!(scene.after(Duration::from_hours(1)).await?, ["mail to ana: hello"]);
        Ok(())
    }

    #[tokio::test]
    async fn a_partner_gets_the_pause_that_it_asks_for() -> Result<(), Failure> {
        let mut scene = Scene::new()?;
        *scene.shop.outside.answers.lock().unwrap_or_else(PoisonError::into_inner) = vec![429];
        scene.shop.client.enqueue(Webhook { order: 7 }).await?;
        assert_eq!(scene.after(Duration::ZERO).await?.len(), 0);
        scene.shop.client.enqueue(Webhook { order: 8 }).await?;
        assert_eq!(scene.after(Duration::from_secs(29)).await?.len(), 0, "the queue waits");
        assert_eq!(scene.after(Duration::from_secs(1)).await?.len(), 2);
        Ok(())
    }

    #[tokio::test]
    async fn a_customer_with_many_notifications_holds_no_other_up() -> Result<(), Failure> {
        let mut scene = Scene::new()?;
        for (customer, text) in [("ana", "1"), ("ana", "2"), ("ana", "3"), ("bo", "1")] {
            let job = Notify { customer: customer.to_owned(), text: text.to_owned() };
            scene.shop.client.enqueue(job).group(customer).await?;
        }
        let sent = scene.after(Duration::ZERO).await?;
        assert!(sent[..2].contains(&"to bo: 1".to_owned()), "{sent:?}");
        Ok(())
    }

    #[tokio::test]
    async fn the_report_is_made_at_two_in_the_morning_in_berlin() -> Result<(), Failure> {
        let mut scene = Scene::new()?; // it is 2026-01-01T00:00Z
        let order = scene.shop.place("ana", 4_200).await?;
        scene.shop.pay(order).await?;
        scene.after(Duration::ZERO).await?;
        let tick = scene.t.enqueued::<Report>().await?.remove(0);
        assert_eq!(tick.delay, Duration::from_hours(1));
        scene.after(tick.delay).await?;
        let result = scene.t.client.get(tick.record.id).await?.and_then(|job| job.result);
        assert_eq!(result.ok_or("it gives one")?.bytes, b"[1,4200]");
        Ok(())
    }

    #[tokio::test]
    async fn an_export_tells_how_far_it_is() -> Result<(), Failure> {
        let mut scene = Scene::new()?;
        let job = scene.t.client.enqueue(Export { rows: 3 }).await?.id().ok_or("its queue has no cap")?;
        scene.after(Duration::ZERO).await?;
        let job = scene.t.client.get(job).await?.ok_or("it is kept for a day")?;
        assert_eq!(
            (job.state, job.notes.progress.map(|p| (p.done, p.total))),
            (State::Done, Some((3, Some(3))))
        );
        Ok(())
    }
}
