//! A reader of the pages: their tags, links and forms.

/// An opening tag.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) name: String,
    pub(crate) attributes: Vec<(String, String)>,
}

impl Tag {
    /// The value of an attribute, as a browser reads it.
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Reads what was escaped.
pub(crate) fn unescape(text: &str) -> String {
    let named = [("&#34;", "\""), ("&#39;", "'"), ("&#60;", "<"), ("&#62;", ">"), ("&#38;", "&")];
    named.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// All opening tags, as a browser finds them.
pub(crate) fn tags(html: &str) -> Vec<Tag> {
    let (mut tags, mut rest) = (Vec::new(), html);
    while let Some(begin) = rest.find('<') {
        rest = &rest[begin + 1..];
        if !rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            continue;
        }
        let end = rest.find(|c: char| c.is_whitespace() || c == '>' || c == '/').unwrap_or(rest.len());
        let mut tag = Tag { name: rest[..end].to_ascii_lowercase(), attributes: Vec::new() };
        rest = &rest[end..];
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '/');
            if rest.is_empty() || rest.starts_with('>') {
                break;
            }
            let end = rest.find(|c: char| c.is_whitespace() || "=>/".contains(c)).unwrap_or(rest.len());
            let name = rest[..end].to_owned();
            rest = &rest[end.max(1).min(rest.len())..];
            let mut value = String::new();
            if html[..html.len() - rest.len()].ends_with('=') || rest.starts_with('=') {
                rest = rest.strip_prefix('=').unwrap_or(rest);
                let quote = rest.chars().next().filter(|c| "\"'".contains(*c));
                let (text, after) = match quote {
                    Some(quote) => rest[1..].split_once(quote).unwrap_or((&rest[1..], "")),
                    None => rest
                        .split_at(rest.find(|c: char| c.is_whitespace() || c == '>').unwrap_or(rest.len())),
                };
                (value, rest) = (unescape(text), after);
            }
            tag.attributes.push((name, value));
        }
        tags.push(tag);
    }
    tags
}

/// The addresses that a page links to.
pub(crate) fn links(html: &str) -> Vec<String> {
    tags(html).iter().filter_map(|tag| tag.attribute("href").map(str::to_owned)).collect()
}

/// The addresses that the forms of a page are sent to.
pub(crate) fn actions(html: &str) -> Vec<String> {
    forms(html).into_iter().map(|form| form.action).collect()
}

/// A form: where it goes, its fields without those of buttons, and how many buttons it has.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) action: String,
    pub(crate) method: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) buttons: usize,
}

/// The lists of a form, each with what is selected.
fn selects(tags: &[Tag]) -> Vec<(String, String)> {
    let (mut found, mut name) = (Vec::new(), String::new());
    for tag in tags {
        match tag.name.as_str() {
            "select" => tag.attribute("name").unwrap_or_default().clone_into(&mut name),
            "option" if tag.attribute("selected").is_some() => {
                found.push((name.clone(), tag.attribute("value").unwrap_or_default().to_owned()));
            }
            _ => {}
        }
    }
    found
}

/// The areas of text of a form. A browser leaves out a line's end right after the tag.
fn textareas(form: &str) -> Vec<(String, String)> {
    let area = |(at, _): (usize, &str)| {
        let tag = tags(&form[at..]).into_iter().next()?;
        let text = form[at..].split_once('>')?.1.split("</textarea>").next()?;
        Some((tag.attribute("name")?.to_owned(), unescape(text.strip_prefix('\n').unwrap_or(text))))
    };
    form.match_indices("<textarea ").filter_map(area).collect()
}

/// The forms of a page.
pub(crate) fn forms(html: &str) -> Vec<Form> {
    let read = |form: &str| {
        let tags = tags(form);
        let own = |name: &str| tags[0].attribute(name).unwrap_or_default().to_owned();
        let inputs = tags.iter().filter(|tag| tag.name == "input");
        let field = |tag: &Tag| Some((tag.attribute("name")?.to_owned(), tag.attribute("value")?.to_owned()));
        let fields = inputs.filter_map(field).chain(selects(&tags)).chain(textareas(form)).collect();
        Form {
            action: own("action"),
            method: own("method"),
            fields,
            buttons: tags.iter().filter(|tag| tag.name == "button").count(),
        }
    };
    html.match_indices("<form ")
        .map(|(at, _)| read(html[at..].split("</form>").next().unwrap_or_default()))
        .collect()
}
