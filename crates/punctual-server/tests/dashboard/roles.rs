//! What callers see and may do by their roles, their queues, and whether they see payloads.

use std::time::Duration;

use axum::http::StatusCode;
use punctual::{JobId, Payload, When, testing::TestQueue};
use punctual_server::{
    DashboardOptions,
    token::{NewToken, Payloads, Role},
};

use super::{
    gated::Gated,
    html::{forms, links, unescape},
    site::{Site, fill, job},
};

async fn gated(t: &TestQueue, new: NewToken) -> Gated {
    Gated::new(&t.client, DashboardOptions::default(), new).await
}

async fn of_role(t: &TestQueue, role: Role) -> Gated {
    gated(t, NewToken::new("ana", role)).await
}

async fn of_queue(t: &TestQueue, role: Role, queue: &str) -> Gated {
    gated(t, NewToken { queues: Some(vec![queue.to_owned()]), ..NewToken::new("ana", role) }).await
}

async fn later(t: &TestQueue, queue: &str) -> JobId {
    let mut of = job(&t.client, "k", queue, Payload::json("\"sesame\""));
    of.run_at = When::In(Duration::from_hours(1));
    t.client.push(vec![of]).await.unwrap()[0].id().unwrap()
}

/// The addresses to which the forms and buttons of a page lead, without those that only look.
async fn changes(caller: &Gated, path: &str) -> Vec<String> {
    let answer = caller.get(path).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    let posts = forms(&answer.text).into_iter().filter(|form| form.method == "post" && 0 < form.buttons);
    let pages =
        links(&answer.text).into_iter().filter(|link| link.ends_with("/edit") || link.ends_with("/settings"));
    // To log out changes nothing of the store.
    let all = posts.map(|form| form.action).filter(|action| action != "/logout").chain(pages);
    let mut all: Vec<String> = all.map(|action| action.replace(path, "")).collect();
    all.sort();
    all.dedup();
    all
}

#[tokio::test]
async fn each_role_sees_the_buttons_that_it_may_press() {
    let t = TestQueue::new();
    fill(&t, "mail").await;
    t.client.queue("mail").resume().await.unwrap();
    let id = later(&t, "mail").await;
    let (job, jobs) = (format!("/jobs/{id}"), "/jobs?filter=queue%3Amail");
    let operate_job = ["/duplicate", "/edit", "/jobs/act", "/jobs/confirm"];
    let operate_jobs = ["/jobs/confirm", "/jobs/matching"];
    let (read, operate, admin) =
        (of_role(&t, Role::Read).await, of_role(&t, Role::Operate).await, of_role(&t, Role::Admin).await);
    for (path, operator, administrator) in [
        (job.as_str(), &operate_job[..], &operate_job[..]),
        (jobs, &operate_jobs[..], &operate_jobs[..]),
        ("/queues/mail", &["/pause"][..], &["/pause", "/purge", "/settings"][..]),
        ("/schedules/mail", &["/fire"][..], &["/delete", "/fire", "/pause"][..]),
    ] {
        assert_eq!(changes(&read, path).await, [""; 0], "{path}");
        assert_eq!(changes(&operate, path).await, operator, "{path}");
        assert_eq!(changes(&admin, path).await, administrator, "{path}");
        // What is shown is allowed, and what is not shown is refused.
        for action in administrator {
            let to =
                if action.starts_with("/jobs") { (*action).to_owned() } else { format!("{path}{action}") };
            let is_refused =
                async |caller: &Gated| caller.post(&to, &[]).await.status == StatusCode::FORBIDDEN;
            assert!(is_refused(&read).await, "{to}");
            assert_eq!(is_refused(&operate).await, !operator.contains(action), "{to}");
            assert!(!is_refused(&admin).await, "{to}");
        }
    }
    t.client.queue("mail").pause("bo", "").await.unwrap();
    t.client.schedule("mail").pause("bo", "").await.unwrap();
    assert_eq!(changes(&read, "/queues/mail").await, [""; 0]);
    assert_eq!(changes(&operate, "/queues/mail").await, ["/resume"]);
    assert_eq!(changes(&operate, "/schedules/mail").await, ["/fire"]);
    assert_eq!(changes(&admin, "/schedules/mail").await, ["/delete", "/fire", "/resume"]);
    for (caller, path) in [(&read, format!("{job}/edit")), (&operate, "/queues/mail/settings".to_owned())] {
        assert_eq!(caller.get(&path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    // A page names its caller as the one who pauses.
    assert!(admin.get("/schedules/mail").await.text.contains("by bo"));
    admin.post("/queues/mail/pause", &[("reason", "x")]).await;
    assert!(admin.get("/queues/mail").await.text.contains("by ana"));
}

#[tokio::test]
async fn a_read_only_server_shows_no_button_to_an_admin_either() {
    let t = TestQueue::new();
    fill(&t, "mail").await;
    let id = later(&t, "mail").await;
    let options = DashboardOptions { read_only: true, ..DashboardOptions::default() };
    let admin = Gated::new(&t.client, options, NewToken::new("ana", Role::Admin)).await;
    for path in [&format!("/jobs/{id}"), "/jobs?filter=queue%3Amail", "/queues/mail", "/schedules/mail"] {
        assert_eq!(changes(&admin, path).await, [""; 0], "{path}");
    }
    for path in [format!("/jobs/{id}/edit"), "/queues/mail/settings".to_owned()] {
        assert_eq!(admin.get(&path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
}

#[tokio::test]
async fn a_caller_for_some_queues_sees_their_jobs_only() {
    let t = TestQueue::new();
    let (own, other) = (later(&t, "mail").await, later(&t, "sms").await);
    let caller = of_queue(&t, Role::Operate, "mail").await;
    let start = caller.get("/").await;
    assert_eq!((start.status, start.location.as_str()), (StatusCode::SEE_OTHER, "/jobs"));
    for (path, target) in [
        ("/jobs", "/jobs?filter=queue%3Amail"),
        (
            "/jobs?filter=state%3Awaiting&did=delete&done=1",
            "/jobs?filter=queue%3Amail+state%3Awaiting&did=delete&done=1",
        ),
    ] {
        let sent = caller.get(path).await;
        assert_eq!((sent.status, sent.location.as_str()), (StatusCode::SEE_OTHER, target));
    }
    let page = caller.get("/jobs?filter=queue%3Amail").await;
    assert_eq!(page.status, StatusCode::OK);
    let listed = links(&page.text);
    assert!(listed.contains(&format!("/jobs/{own}")) && !listed.contains(&format!("/jobs/{other}")));
    assert!(
        page.text.contains("Searched the jobs of your queues.") && !listed.contains(&"/schedules".to_owned()),
        "{}",
        page.text
    );
    for filter in
        ["queue%3Asms", "queue%3Amail%2Csms", "queue%3Am*", "-queue%3Asms", "queue%3Asms+queue%3Amail"]
    {
        let answer = caller.get(&format!("/jobs?filter={filter}")).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{filter}: {}", answer.text);
    }
    assert!(!page.text.contains("data-live"), "the stream says something of all queues");
    assert_eq!(caller.get("/events").await.status, StatusCode::FORBIDDEN);
    let wrong = caller.get("/jobs?filter=kimd%3Ax").await;
    assert!(
        wrong.status == StatusCode::BAD_REQUEST && !wrong.text.contains("class=\"count\""),
        "{}",
        wrong.text
    );
    let wrong = caller.get("/jobs?filter=queue%3Asms+state%3Asoon").await;
    assert!(!wrong.text.contains("class=\"count\""), "{}", wrong.text);

    assert_eq!(changes(&caller, &format!("/jobs/{own}")).await.len(), 4);
    assert_eq!(caller.get(&format!("/jobs/{other}")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(changes(&caller, "/queues/mail").await, ["/pause"]);
    for path in ["/queues/sms", "/queues", "/schedules", "/schedules/x", "/upcoming", "/failures", "/metrics"]
    {
        assert_eq!(caller.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    for path in ["/queues/sms/pause", "/queues/sms/resume", "/queues/mail/purge", "/queues/mail/settings"] {
        assert_eq!(caller.post(path, &[]).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    for path in [format!("/jobs/{other}/edit"), format!("/jobs/{other}/duplicate")] {
        assert_eq!(caller.post(&path, &[]).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let (mine, theirs) = (format!("{own}.waiting.1.mail"), format!("{other}.waiting.1.sms"));
    for (jobs, expected) in
        [(vec![&mine, &theirs], StatusCode::FORBIDDEN), (vec![&mine], StatusCode::SEE_OTHER)]
    {
        let mut fields = vec![("action", "cancel"), ("from", "jobs")];
        fields.extend(jobs.iter().map(|job| ("job", job.as_str())));
        assert_eq!(caller.post("/jobs/act", &fields).await.status, expected, "{fields:?}");
    }
    // The page of one job and the form of another one.
    let other_job = format!("{other}.waiting.1.sms");
    let fields =
        [("job", other_job.as_str()), ("payload", "2"), ("due", "now"), ("copy", other_job.as_str())];
    for action in ["edit", "duplicate"] {
        let answer = caller.post(&format!("/jobs/{own}/{action}"), &fields).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{action}: {}", answer.text);
    }
    assert_eq!(t.client.get(other).await.unwrap().unwrap().version, 1);
    // A form that says another queue than that of the job reaches nothing.
    let lie = format!("{other}.waiting.1.mail");
    caller.post("/jobs/act", &[("action", "cancel"), ("job", &lie)]).await;
    assert_eq!(t.client.count(Some("sms")).await.unwrap().waiting, 1);
    assert_eq!(t.client.count(Some("mail")).await.unwrap().cancelled, 1);
}

#[tokio::test]
async fn hidden_payloads_say_who_hides_them_and_can_not_be_edited_or_copied() {
    let t = TestQueue::new();
    fill(&t, "secret").await;
    let id = later(&t, "secret").await;
    let token = NewToken { payloads: Payloads::Hidden, ..NewToken::new("ana", Role::Admin) };
    let by_token = gated(&t, token).await;
    let options = DashboardOptions { hide_payloads: true, ..DashboardOptions::default() };
    let by_settings = Gated::new(&t.client, options, NewToken::new("bo", Role::Admin)).await;
    for (caller, words, others) in [
        (&by_token, "Hidden from your token", "Hidden by the settings"),
        (&by_settings, "Hidden by the settings of this dashboard", "Hidden from your token"),
    ] {
        for path in [format!("/jobs/{id}"), "/schedules/secret".to_owned()] {
            let text = unescape(&caller.get(&path).await.text);
            assert!(
                text.contains(words) && !text.contains(others) && !text.contains("sesame"),
                "{path}: {text}"
            );
            assert!(!text.contains("header of") && !text.contains("Edit payload"), "{path}: {text}");
            assert!(!text.contains("/duplicate"), "{path}: {text}");
        }
        for path in [format!("/jobs/{id}/edit"), format!("/jobs/{id}/duplicate")] {
            let answer = caller.post(&path, &[("payload", "1"), ("due", "now")]).await;
            assert!(
                answer.status == StatusCode::FORBIDDEN && answer.text.contains("Payloads are hidden"),
                "{path}"
            );
        }
        assert_eq!(caller.get(&format!("/jobs/{id}/edit")).await.status, StatusCode::FORBIDDEN);
    }
    let before = t.client.get(id).await.unwrap().unwrap();
    assert_eq!((before.version, t.client.list(&Site::all()).await.unwrap().jobs.len()), (1, 9));
}
