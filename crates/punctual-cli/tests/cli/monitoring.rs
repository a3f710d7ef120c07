//! The page about metrics, the alert rules and the board, against what a worker and a server serve.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    fixture::{Cli, said, wait},
    listen::{Listener, get},
    redis::server::Server as Redis,
    serve::Served,
    server_page::post,
};

fn operating(file: &str) -> String {
    format!("{}/../../docs/operating/{file}", env!("CARGO_MANIFEST_DIR"))
}

/// What a worker and a server of one store serve, after a job each and a refused call.
#[track_caller]
fn served() -> [String; 2] {
    let t = Cli::new();
    t.ok("push k -q mail");
    let worker = Listener::start(&t, "work -q mail --exec true");
    let done = r#"punctual_jobs_settled_total{queue="mail",kind="k",verdict="ack",state="done"}"#;
    let of_worker = worker.counts(done, "1");
    let server = Served::start(t, "");
    post(&server.url, "enqueue", r#"{"jobs":[{"kind":"k","queue":"later"}]}"#);
    // The store refuses it, because it expires before it is due.
    let refused = post(&server.url, "enqueue", r#"{"jobs":[{"kind":"k","queue":"mail","expires_at_ms":1}]}"#);
    assert!(refused.contains("expires_at"), "{refused}");
    let addr = server.url.strip_prefix("http://").unwrap();
    [of_worker, get(addr, "/metrics").unwrap()]
}

/// The labels of each name of a sample.
fn labels(texts: &[String]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in texts.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#')) {
        let (sample, _) = line.rsplit_once(' ').unwrap();
        let (name, own) = sample.split_once('{').unwrap_or((sample, ""));
        // No value has such a comma here.
        let own = own
            .trim_end_matches('}')
            .split(',')
            .filter_map(|label| label.split_once('='))
            .map(|(label, _)| label);
        labels.entry(name).or_default().extend(own);
    }
    labels
}

/// The gauges of a server whose store is on Redis, before and after Redis ends.
#[test]
fn gauges_on_redis_equal_the_history_and_go_with_the_store() {
    let redis = Redis::start(&[]);
    let t = Cli::with_store(&redis.url());
    for line in
        ["push k -q mail", "push k -q mail --in 1h", "take -q mail", "push k -q mail", "queue pause mail"]
    {
        t.ok(line);
    }
    let server = Served::start(t, "");
    let text = || get(server.url.strip_prefix("http://").unwrap(), "/metrics").unwrap();
    let before = text();
    for line in [
        "punctual_store_up 1",
        "punctual_store_jobs{state=\"waiting\"} 2",
        "punctual_queue_jobs{queue=\"mail\",state=\"waiting\"} 2",
        "punctual_queue_jobs{queue=\"mail\",state=\"due\"} 1",
        "punctual_queue_jobs{queue=\"mail\",state=\"done\"} 1",
        "punctual_queue_jobs{queue=\"mail\",state=\"dead\"} 0",
        "punctual_queue_paused{queue=\"mail\"} 1",
        "punctual_queues_left_out 0",
    ] {
        assert!(before.lines().any(|own| own == line), "{line} is not in {before}");
    }
    let oldest = before
        .lines()
        .find_map(|line| line.strip_prefix("punctual_queue_oldest_due_seconds{queue=\"mail\"} "));
    assert!(oldest.is_some_and(|age| 0.0 < age.parse::<f64>().unwrap()), "{before}");
    drop(redis);
    let away = || Some(text()).filter(|text| text.contains("\npunctual_store_up 0\n"));
    let after = wait(away, || format!("the store is not away: {}", text()));
    assert!(!after.contains("punctual_queue") && !after.contains("punctual_store_jobs"), "{after}");
    assert!(post(&server.url, "now", "").contains("store_unavailable"));
}

fn families(texts: &[String]) -> impl Iterator<Item = &str> {
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("punctual_") && *word != "punctual_server").collect()
}

#[test]
fn every_name_of_the_page_and_of_the_rules_is_served() {
    let texts = served();
    let (labels, families): (_, BTreeSet<&str>) = (labels(&texts), families(&texts).collect());
    for file in ["metrics.md", "alerts.yml"] {
        let page = fs::read_to_string(operating(file)).unwrap();
        assert!(2 < names(&page).len(), "{file}");
        for name in names(&page) {
            let is_served = families.contains(name) || labels.contains_key(name);
            assert!(is_served, "{file} names {name}, which is not in {texts:#?}");
        }
    }
    // And the other way round: each family is on the page.
    let page = fs::read_to_string(operating("metrics.md")).unwrap();
    for family in families {
        assert!(page.contains(family), "metrics.md does not name {family}");
    }
}

/// The commands that the alert rules suggest, with labels that need quotes.
#[test]
fn every_hint_of_the_rules_is_a_command_that_runs() {
    let t = Cli::new();
    t.ok("push k");
    let rules = fs::read_to_string(operating("alerts.yml")).unwrap();
    let hints = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("hint: \"punctual ls '")?.strip_suffix("'\""));
    let mut count = 0;
    for hint in hints {
        let labels = ["queue", "kind"].map(|label| format!("{{{{ $labels.{label} }}}}"));
        let filter = labels.iter().fold(hint.replace("\\\"", "\""), |text, label| text.replace(label, "a b"));
        let said = said(t.command(["ls".to_owned(), filter.clone()]).spawn().unwrap());
        assert_eq!(said.code, Some(0), "{filter}: {said:#?}");
        count += 1;
    }
    assert_eq!(count, 4, "hints with a filter");
}

/// The board.
fn board() -> Value {
    serde_json::from_str(&fs::read_to_string(operating("grafana.json")).unwrap()).unwrap()
}

/// The panels with queries, each with its queries and their legends.
fn panels<'a>(board: &'a Value) -> impl Iterator<Item = (&'a Value, Vec<(&'a str, &'a str)>)> {
    let panels = board["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    panels.map(|panel| {
        let targets = panel["targets"].as_array().unwrap().iter();
        let text = |value: &'a Value| value.as_str().unwrap();
        (panel, targets.map(|target| (text(&target["expr"]), text(&target["legendFormat"]))).collect())
    })
}

/// The labels that an expression names: those of matchers, by the name of the metric, and those of `by`.
fn labels_of(expr: &str) -> (Vec<(&str, &str)>, BTreeSet<&str>) {
    let mut matched = Vec::new();
    for name in names(expr) {
        for (_, rest) in expr.match_indices(name).map(|(at, _)| expr[at..].split_at(name.len())) {
            let Some((matchers, _)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
                continue;
            };
            let labels = matchers.split(", ").map(|matcher| matcher.split(['=', '!']).next().unwrap());
            matched.extend(labels.map(|label| (name, label)));
        }
    }
    let by = expr.split("by (").skip(1).flat_map(|rest| rest.split(')').next().unwrap().split(", "));
    (matched, by.collect())
}

/// Prometheus adds these.
const OF_TARGET: [&str; 2] = ["job", "instance"];

/// A query with a name or a label that nobody serves shows nothing, and an alert with one never fires.
#[test]
fn every_label_of_the_rules_and_of_the_board_is_served() {
    let texts = served();
    let served = labels(&texts);
    let (rules, board) = (fs::read_to_string(operating("alerts.yml")).unwrap(), board());
    let of_rules = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let of_board = panels(&board).flat_map(|(_, queries)| queries.into_iter().map(|(expr, _)| expr));
    let exprs: Vec<&str> = of_rules.chain(of_board).filter(|expr| !names(expr).is_empty()).collect();
    assert!(25 < exprs.len(), "{exprs:#?}");
    for expr in exprs {
        let has = |name: &str, label: &str| {
            let labels = served.get(name).unwrap_or_else(|| panic!("{expr}: {name} is not in {texts:#?}"));
            OF_TARGET.contains(&label) || labels.contains(label)
        };
        let (matched, by) = labels_of(expr);
        for (name, label) in matched {
            assert!(has(name, label), "{expr}: {name} has no label {label}");
        }
        for label in by {
            assert!(names(expr).into_iter().all(|name| has(name, label)), "{expr}: no label {label}");
        }
        assert!(names(expr).into_iter().all(|name| has(name, "job")));
    }
    for variable in board["templating"]["list"].as_array().unwrap() {
        for name in names(variable["definition"].as_str().unwrap_or_default()) {
            assert!(served.contains_key(name), "{variable:#}");
        }
    }
}

#[test]
fn the_board_fits_any_grafana() {
    let board = board();
    let texts = board.to_string();
    let uids = texts.matches("\"uid\":").count();
    // All but that of the board itself.
    assert_eq!(texts.matches("\"uid\":\"${datasource}\"").count(), uids - 1, "a data source is fixed");
    let variables = board["templating"]["list"].as_array().unwrap();
    let variables: Vec<&str> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "job", "queue"]);
    let all = board["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = all.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), all.len(), "ids of panels");
    let mut cells = BTreeSet::new();
    for panel in all {
        let at = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        for cell in (at[0]..at[0] + at[2]).flat_map(|x| (at[1]..at[1] + at[3]).map(move |y| (x, y))) {
            assert!(cell.0 < 24 && cells.insert(cell), "{panel:#} is outside or covers another one");
        }
    }
    for (panel, queries) in panels(&board) {
        let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
        assert!(text(&panel["title"]) && text(&panel["description"]), "{panel:#}");
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap();
        for (expr, legend) in queries {
            let (matched, by) = labels_of(expr);
            // Stores can share a Prometheus.
            assert!(matched.iter().any(|(_, label)| *label == "job"), "{expr} has no job");
            let shown = legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap());
            for label in shown {
                assert!(by.contains(label), "{expr} has no label {label}");
            }
            let is_time = !expr.contains("_count") && expr.contains("_seconds") && unit != "short";
            assert_eq!(is_time, unit == "s", "{expr} in {unit}");
            let is_rate = expr.contains("rate(") && unit != "s" && unit != "short";
            assert_eq!(is_rate, unit == "ops", "{expr} in {unit}");
        }
    }
}

/// Series of twenty minutes, and which alerts fire for them at the end.
fn alerts(file: &str) -> Value {
    let case = |series: &[(&str, &str)], fires: &[(&str, Value, [&str; 2])]| {
        let series = series.iter().map(|(series, values)| json!({ "series": series, "values": values }));
        let names = [
            "PunctualJobsStartLate",
            "PunctualJobsWait",
            "PunctualJobsBlocked",
            "PunctualJobsDie",
            "PunctualPoisonJobs",
            "PunctualStoreAway",
            "PunctualProcessAway",
        ];
        let tests = names.map(|name| {
            let of = fires.iter().filter(|(fired, ..)| *fired == name);
            let alert = |labels: &Value, [summary, hint]: &[&str; 2]| {
                json!({ "exp_labels": labels, "exp_annotations": { "summary": summary, "hint": hint } })
            };
            let expected: Vec<Value> = of.map(|(_, labels, says)| alert(labels, says)).collect();
            json!({ "eval_time": "20m", "alertname": name, "exp_alerts": expected })
        });
        json!({ "interval": "1m", "input_series": series.collect::<Vec<_>>(), "alert_rule_test": tests })
    };
    let (waits, paused) =
        ("punctual_queue_oldest_due_seconds{queue=\"mail\"}", "punctual_queue_paused{queue=\"mail\"}");
    let blocked = "punctual_queue_oldest_blocked_seconds{queue=\"mail\"}";
    let late = |le: &str| format!("punctual_job_lateness_seconds_bucket{{queue=\"mail\",le=\"{le}\"}}");
    let [quick, slow, all] = ["1", "10", "+Inf"].map(late);
    let dead = "punctual_jobs_settled_total{queue=\"mail\",kind=\"send\",state=\"dead\"}";
    let poison = "punctual_leases_reclaimed_total{queue=\"mail\",state=\"dead\"}";
    let warning = |more: Value| {
        let mut labels = json!({ "severity": "warning" });
        labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        labels
    };
    let of_mail = || warning(json!({ "queue": "mail" }));
    json!({ "rule_files": [file], "tests": [
        case(&[(waits, "0+60x20"), (paused, "0x20")], &[("PunctualJobsWait", of_mail(), ["A job of queue mail has been due for 20m 0s and does not start", "is a worker of this queue running? punctual stats"])]),
        // A job that waits for less than five minutes, and a queue that is paused.
        case(&[(waits, "200x20"), (paused, "0x20")], &[]),
        case(&[(waits, "0+60x20"), (paused, "1x20")], &[]),
        case(&[(blocked, "0+60x20"), (waits, "0x20"), (paused, "0x20")], &[("PunctualJobsBlocked", of_mail(), ["A job of queue mail has been due for 20m 0s and waits for its concurrency key", r#"punctual ls 'state:running queue:"mail"'"#])]),
        case(&[(blocked, "0+60x20"), (paused, "1x20")], &[]),
        case(&[(&quick, "0+97x20"), (&slow, "0+100x20"), (&all, "0+100x20")], &[("PunctualJobsStartLate", of_mail(), ["1 % of the jobs of queue mail start more than 5 s late", "punctual stats; add slots or workers if the slots are full"])]),
        case(&[(&quick, "0+100x20"), (&slow, "0+100x20"), (&all, "0+100x20")], &[]),
        case(&[(dead, "0+1x20")], &[("PunctualJobsDie", warning(json!({ "queue": "mail", "kind": "send" })), ["More than 10 jobs of kind send became dead within 15 minutes", r#"punctual ls 'state:dead queue:"mail" kind:"send"'"#])]),
        case(&[(dead, "5x20")], &[]),
        case(&[(poison, "0x10 1x10")], &[("PunctualPoisonJobs", of_mail(), ["Jobs of queue mail are dead because their workers die", r#"punctual ls 'state:dead queue:"mail"'"#])]),
        case(
            &[("punctual_store_up{instance=\"one\"}", "0x20")],
            &[("PunctualStoreAway", json!({ "severity": "critical", "instance": "one" }), ["The store does not answer the server one", "punctual doctor"])],
        ),
        case(
            &[("up{job=\"punctual\",instance=\"one\"}", "0x20"), ("up{job=\"other\",instance=\"two\"}", "0x20")],
            &[("PunctualProcessAway", json!({ "severity": "critical", "job": "punctual", "instance": "one" }), ["one does not answer", "is the process running?"])],
        ),
    ]})
}

/// Prometheus's own checks of the texts, of the rules and of the queries of the board.
#[test]
fn promtool_finds_nothing_wrong() {
    let promtool = |args: &[&str], input: &str| {
        let mut command = Command::new("promtool");
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("promtool is installed by scripts/test (Debian's prometheus)");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "promtool {args:?}: {said}\n{input}");
    };
    promtool(&["check", "rules", &operating("alerts.yml")], "");
    let t = Cli::new();
    let cases = t.path("cases.yml");
    fs::write(&cases, alerts(&operating("alerts.yml")).to_string()).unwrap();
    promtool(&["test", "rules", cases.to_str().unwrap()], "");
    let board = board();
    let exprs = panels(&board).flat_map(|(_, queries)| queries.into_iter().map(|(expr, _)| expr));
    let exprs = exprs.map(|expr| expr.replace("$__rate_interval", "1m"));
    let rules: Vec<Value> =
        exprs.enumerate().map(|(n, expr)| json!({ "record": format!("r{n}"), "expr": expr })).collect();
    let file = t.path("queries.yml");
    // JSON is YAML.
    fs::write(&file, json!({ "groups": [{ "name": "board", "rules": rules }] }).to_string()).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()], "");
    for text in served() {
        promtool(&["check", "metrics"], &text);
    }
}
