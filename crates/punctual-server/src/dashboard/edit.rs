//! Editing the payload of a waiting job. The page is not live, so that a text that is being typed stays.

use askama::Template;
use axum::{
    extract::{Path, Request},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use punctual::{
    JobRecord, Payload, State,
    store::{Acted, Action},
};
use serde::de::IgnoredAny;

use super::{
    content::SHOWN_MAX,
    fault::Fault,
    fields::Fields,
    frame::{Frame, Here, html},
    job::read,
    view::View,
};
use crate::{
    gate::Right,
    operations::{Outcomes, Picked},
};

/// The most bytes of a payload that can be edited: what the page of the job shows.
const TEXT_BYTES_MAX: usize = SHOWN_MAX;
/// The most bytes of the form: a text of which each byte is escaped, and room for the rest.
const FORM_BYTES_MAX: usize = 3 * TEXT_BYTES_MAX + 4 * 1024;

#[derive(Template)]
#[template(path = "edit.html")]
struct Page {
    frame: Frame,
    link: String,
    kind: String,
    short: String,
    media_type: String,
    picked: String,
    text: String,
    /// What is wrong, and what to try.
    wrong: Option<(String, String)>,
    /// Whether the job is still as the form says.
    is_stale: bool,
}

/// Returns whether a job has a payload that can be edited as text.
///
/// A browser changes the ends of lines to those of its own, so a text with others cannot be kept as it is.
pub(super) fn can(view: &View, job: &JobRecord) -> bool {
    let is_text = std::str::from_utf8(&job.payload.bytes).is_ok_and(|text| !text.contains(['\r', '\0']));
    job.state == State::Waiting
        && view.hides().is_none()
        && is_text
        && job.payload.bytes.len() <= TEXT_BYTES_MAX
}

/// Shows the form. Makes one call to the store.
pub(super) async fn page(board: View, Path(id): Path<String>) -> Result<Response, Fault> {
    let job = checked(&board, id).await?;
    if !can(&board, &job) {
        return Err(Fault::Form(
            "The payload of this job cannot be edited here.".to_owned(),
            "The job must be waiting, and its payload a text of at most 64 KiB. Use punctual edit."
                .to_owned(),
        ));
    }
    let text = String::from_utf8_lossy(&job.payload.bytes).into_owned();
    html(&Page::new(&board, &job, Picked::from(&job).to_string(), text))
}

/// Replaces the payload, if the job is as the form says. Makes two calls to the store.
pub(super) async fn save(board: View, Path(id): Path<String>, request: Request) -> Result<Response, Fault> {
    let fields = Fields::of_large_form(request.into_body(), FORM_BYTES_MAX).await?;
    let job = checked(&board, id).await?;
    // Only this job was checked.
    let picked = fields.get("job").parse::<Picked>().ok().filter(|picked| picked.id == job.id);
    let (Some(picked), Some(text)) = (picked, fields.exact("payload")) else {
        return Err(Fault::Form("The form is not complete.".to_owned(), "Load the page again.".to_owned()));
    };
    // A browser sends each end of a line as two characters.
    let text = text.replace("\r\n", "\n");
    let payload = Payload { bytes: text.clone().into_bytes(), ..job.payload.clone() };
    let refuse = |status: StatusCode, what: &str, hint: &str| -> Result<Response, Fault> {
        let wrong = Some((what.to_owned(), hint.to_owned()));
        let is_stale = status == StatusCode::CONFLICT;
        let page = Page { wrong, is_stale, ..Page::new(&board, &job, picked.to_string(), text.clone()) };
        Ok((status, html(&page)?).into_response())
    };
    if TEXT_BYTES_MAX < payload.bytes.len() {
        return refuse(
            StatusCode::BAD_REQUEST,
            "The text is over 64 KiB. Nothing was changed.",
            "Shorten it, or use punctual edit.",
        );
    }
    if payload.is_json()
        && let Err(error) = serde_json::from_str::<IgnoredAny>(&text)
    {
        let what = format!("The text is not JSON: {error}. Nothing was changed.");
        return refuse(StatusCode::BAD_REQUEST, &what, "Correct it, and save it again.");
    }
    let acted = board.client.act(&[picked.target()], &Action::EditPayload(payload)).await;
    let outcomes = acted.as_ref().map(|acted| Outcomes::of_all(acted)).unwrap_or_default();
    board.activity.note(board.entry("edit").jobs([job.id], &outcomes), &acted);
    match acted?.first() {
        Some(Acted::Done(..)) => {
            let page = format!("jobs/{}", job.id);
            Ok(Redirect::to(&board.links.query(&page, &[("did", "edit")])).into_response())
        }
        _ => refuse(
            StatusCode::CONFLICT,
            "The job changed or started after this page was loaded. Nothing was changed.",
            "Copy your text, and look at the job as it is now.",
        ),
    }
}

/// Reads a job that the caller may change and whose payload it may see.
async fn checked(view: &View, id: String) -> Result<JobRecord, Fault> {
    let job = read(view, id).await?;
    view.check(Right::Operate, Some(&job.queue))?;
    match (view.options.read_only, view.hides()) {
        (true, _) => Err(Fault::ReadOnly),
        (_, Some(_)) => Err(Fault::Unseen),
        _ => Ok(job),
    }
}

impl Page {
    fn new(board: &View, job: &JobRecord, picked: String, text: String) -> Self {
        Self {
            frame: Frame::new(board, Here::Jobs, format!("Edit {} {}", job.kind, job.id.short())).still(),
            link: board.links.job(job.id),
            kind: job.kind.clone(),
            short: job.id.short(),
            media_type: job.payload.content_type.clone().into_owned(),
            picked,
            text,
            wrong: None,
            is_stale: false,
        }
    }
}
