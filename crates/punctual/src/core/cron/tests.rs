use super::*;

/// Parses an instant in RFC 3339.
fn at(text: &str) -> Timestamp {
    instant(&text.parse::<Moment>().unwrap().to_zoned(TimeZone::UTC)).unwrap()
}

fn ticks(expression: &str, zone: &str, from: &str, n: usize) -> Vec<String> {
    let cron = Cron::new(expression).unwrap().in_tz(zone).unwrap();
    let mut tick = at(from);
    (0..n)
        .map(|_| {
            let before = tick;
            tick = cron.next(before).unwrap();
            assert!(before < tick);
            assert_eq!(cron.last(tick), Some(tick));
            whole_second(tick, &TimeZone::get(zone).unwrap())
                .unwrap()
                .strftime("%m-%d %H:%M:%S %:z")
                .to_string()
        })
        .collect()
}

#[test]
fn fixed_times_in_a_gap_come_right_behind_it() {
    let from = "2026-03-07T12:00:00Z";
    for expression in ["0 2 * * *", "30 2 * * *"] {
        let at = &expression[..2].trim();
        assert_eq!(
            ticks(expression, "America/New_York", from, 2),
            ["03-08 03:00:00 -04:00".to_owned(), format!("03-09 02:{at:0>2}:00 -04:00")],
        );
    }
    // The clock of Lord Howe jumps forward by half an hour, from 02:00 to 02:30.
    let from = "2026-10-03T12:00:00Z";
    assert_eq!(
        ticks("15 2 * * *", "Australia/Lord_Howe", from, 2),
        ["10-04 02:30:00 +11:00", "10-05 02:15:00 +11:00"]
    );
    assert_eq!(ticks("45 2 * * *", "Australia/Lord_Howe", from, 1), ["10-04 02:45:00 +11:00"]);
}

#[test]
fn fixed_times_that_come_twice_tick_once() {
    assert_eq!(
        ticks("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", 2),
        ["11-01 01:30:00 -04:00", "11-02 01:30:00 -05:00"]
    );
    assert_eq!(
        ticks("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T03:00:00Z", 2),
        ["04-05 01:45:00 +11:00", "04-06 01:45:00 +10:30"]
    );
}

#[test]
fn steps_go_by_the_clock_on_the_wall() {
    assert_eq!(
        ticks("*/30 * * * *", "America/New_York", "2026-03-08T06:00:00Z", 3),
        ["03-08 01:30:00 -05:00", "03-08 03:00:00 -04:00", "03-08 03:30:00 -04:00"]
    );
    assert_eq!(
        ticks("*/30 * * * *", "America/New_York", "2026-11-01T04:30:00Z", 5),
        [
            "11-01 01:00:00 -04:00",
            "11-01 01:30:00 -04:00",
            "11-01 01:00:00 -05:00",
            "11-01 01:30:00 -05:00",
            "11-01 02:00:00 -05:00"
        ]
    );
    assert_eq!(
        ticks("*/15 * * * *", "Australia/Lord_Howe", "2026-04-04T14:15:00Z", 6),
        [
            "04-05 01:30:00 +11:00",
            "04-05 01:45:00 +11:00",
            "04-05 01:30:00 +10:30",
            "04-05 01:45:00 +10:30",
            "04-05 02:00:00 +10:30",
            "04-05 02:15:00 +10:30"
        ]
    );
}

#[test]
fn a_list_of_hours_is_no_fixed_time() {
    assert_eq!(
        ticks("30 2,14 * * *", "America/New_York", "2026-03-08T05:00:00Z", 1),
        ["03-08 14:30:00 -04:00"]
    );
    assert_eq!(
        ticks("30 1,13 * * *", "America/New_York", "2026-11-01T04:00:00Z", 2),
        ["11-01 01:30:00 -04:00", "11-01 01:30:00 -05:00"]
    );
}

#[test]
fn six_fields_have_seconds() {
    assert_eq!(
        ticks("*/20 59 23 31 12 *", "UTC", "2026-12-31T23:59:30Z", 2),
        ["12-31 23:59:40 +00:00", "12-31 23:59:00 +00:00"]
    );
}

#[test]
fn what_is_strange_on_the_wall_is_told() {
    let cron = |text: &str| Cron::new(text).unwrap().in_tz("America/New_York").unwrap();
    assert_eq!(cron("30 2 * * *").note(at("2026-03-08T07:00:00Z")), Some(TickNote::BehindGap));
    let (daily, steps) = (cron("30 1 * * *"), cron("*/30 * * * *"));
    assert_eq!(daily.note(at("2026-11-01T05:30:00Z")), Some(TickNote::FirstOfTwo));
    assert_eq!(steps.note(at("2026-11-01T06:30:00Z")), Some(TickNote::SecondOfTwo));
    assert_eq!(steps.note(at("2026-11-01T07:30:00Z")), None);
    assert_eq!(Cron::every(Duration::from_mins(1)).unwrap().note(at("2026-11-01T06:30:00Z")), None);
}

#[test]
fn parts_of_a_second_are_no_tick() {
    let cron = Cron::new("* * * * * *").unwrap();
    let whole = at("2026-01-01T00:00:01Z");
    let ms = |ms: u64| Timestamp::saturating_from_ms(whole.as_ms() + ms);
    assert_eq!((cron.next(ms(0)), cron.next(ms(999))), (Some(ms(1_000)), Some(ms(1_000))));
    assert_eq!((cron.last(ms(999)), cron.last(ms(1_000))), (Some(ms(0)), Some(ms(1_000))));
}

#[test]
fn an_interval_counts_from_the_epoch() {
    let cron = Cron::every(Duration::from_mins(90)).unwrap();
    let ms = Timestamp::saturating_from_ms;
    assert_eq!((cron.next(ms(0)), cron.next(ms(5_399_999))), (Some(ms(5_400_000)), Some(ms(5_400_000))));
    assert_eq!((cron.last(ms(5_399_999)), cron.last(ms(5_400_000))), (Some(ms(0)), Some(ms(5_400_000))));
    assert_eq!(cron.next(Timestamp::MAX), None);
    assert_eq!(Cron::new(" @every 1h30m").unwrap(), cron);
    assert!(Cron::new("@every 1ms").is_err() && Cron::new("@every").is_err());
}

#[test]
fn the_last_of_missed_ticks_run() {
    let cron = Cron::every(Duration::from_mins(1)).unwrap();
    let minute = |n: u64| Timestamp::saturating_from_ms(n * 60_000);
    let now = Timestamp::saturating_from_ms(10 * 60_000 + 7);
    for (tick, at_most, first) in [(4, 10, 4), (4, 7, 4), (4, 6, 5), (4, 1, 10), (10, 1, 10)] {
        assert_eq!(cron.first_to_run(minute(tick), now, at_most), minute(first), "{tick} {at_most}");
    }
}

#[test]
fn what_is_no_schedule_is_refused() {
    for text in [
        "",
        " ",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* * 30 2 *",
        "@never",
        "1--100000000 * * * *",
        "*/0 * * * *",
        "a b c d e",
        "0 0 * * MON-",
        "\0",
        "２ * * * *",
    ] {
        let error = Cron::new(text).unwrap_err();
        assert_eq!(error.kind(), crate::core::error::ErrorKind::Invalid, "{text:?}");
    }
    assert!(Cron::new(&"*".repeat(300)).is_err());
    assert!(Cron::new("* * * * *").unwrap().in_tz("Europe/Nowhere").is_err());
    assert!(Cron::every(Duration::from_millis(999)).is_err());
    assert!(Cron::every(Duration::from_hours(24 * 367)).is_err());
    for at_most in [0, 1_001] {
        assert!(Cron::new("@daily").unwrap().on_misfire(Misfire::RunAll { at_most }).is_err());
    }
}

#[test]
fn a_document_has_it_as_it_was() {
    let cron = Cron::new("@daily").unwrap().in_tz("Europe/Berlin").unwrap();
    for cron in [
        cron.on_misfire(Misfire::RunAll { at_most: 7 }).unwrap(),
        Cron::every(Duration::from_secs(5)).unwrap(),
    ] {
        let text = serde_json::to_string(&cron).unwrap();
        assert_eq!(serde_json::from_str::<Cron>(&text).unwrap(), cron, "{text}");
    }
    for text in
        ["{}", r#"{"cron":"@daily","every_ms":1000}"#, r#"{"cron":"x"}"#, r#"{"every_ms":1000,"tz":"UTC"}"#]
    {
        assert!(serde_json::from_str::<Cron>(text).is_err(), "{text}");
    }
}

#[test]
fn an_item_that_does_not_do_what_it_says_is_refused() {
    for (text, hint) in [
        ("*/90 * * * *", "@every 90m"),
        ("*/75 * * * * *", "@every 75s"),
        ("0 */36 * * *", "@every 36h"),
        ("0 0 */31 * *", "@every 31d"),
        ("0 0 1 */13 *", "this value alone write 1"),
        ("0 0 * * */8", "@every 8d"),
        ("10-20/15 * * * *", "this value alone write 10"),
        ("*/5,*/90 * * * *", "@every 90m"),
        ("1,,5 * * * *", "remove the comma"),
        (", * * * *", "remove the comma"),
        ("0 JAN * * *", "write 0 to 23"),
        ("0 0 MAR * *", "write 1 to 31"),
        ("0 0 * MON *", "JAN to DEC"),
        ("0 0 * * JAN", "SUN to SAT"),
        ("0 0 * * SUNMON", "SUN to SAT"),
        ("0 0 * * 0MON", "SUN to SAT"),
        ("0 0 1 * L", "FRIL"),
        ("0 0 * * L,1", "FRIL"),
        ("0 0 * * 5#3L", "FRI#2"),
        ("0 0 L,LW * *", "write one of them"),
        ("0 0 15W3 * *", "write 1 to 31"),
        ("0 0 LWL * *", "write 1 to 31"),
        ("0 0 30 2 MON", "last day"),
        ("0 0 31 4,6,SEP,11 MON", "last day"),
        ("* * * * * * *", "five fields"),
        ("@reboot", "@every 10m"),
    ] {
        let error = Cron::new(text).map(|cron| cron.describe()).expect_err(text);
        assert_eq!(error.kind(), crate::core::error::ErrorKind::Invalid, "{text:?}");
        let said = format!("{error} {}", error.hint().unwrap_or_default());
        assert!(said.contains(hint) && !said.contains("year "), "{text:?}: {said}");
    }
    for text in [
        "*/60 * * * *",
        "0 */24 * * *",
        "0 0 1 */12 *",
        "0 0 * * */7",
        "*/7,*/5 * * * *",
        "0 0 */30 * *",
        "0-59/59 * * * *",
        "0 0 29 2 MON",
        "0 0 30,31 2-4 MON",
        "0 0 31W JAN FRI-SUN",
        "0 0 L 2 *",
        "0 0 LW,15 * *",
        "0 0 1W,15W * MON#1,FRI#L,3L",
        "0 0 ? * 5-7",
        "0 0 15 * +mon",
        "0 0 * jan-Mar,dec mon-SUN/2",
        "00 05 * * 07",
    ] {
        assert!(Cron::new(text).is_ok(), "{text:?}: {:?}", Cron::new(text));
    }
}

#[test]
fn a_stored_expression_goes_on_though_it_is_refused_now() {
    let stored: Cron = serde_json::from_str(r#"{"cron":"*/90 * * * *","tz":"UTC"}"#).unwrap();
    assert_eq!(stored.next(at("2026-01-01T00:00:00Z")), Some(at("2026-01-01T01:00:00Z")));
    assert_eq!(stored.describe(), "At minute 0 past every hour.");
    assert!(stored.check().is_err());
    assert_eq!(serde_json::to_string(&stored).unwrap().matches("*/90").count(), 1);
}

#[test]
fn a_day_field_that_begins_with_a_star_restricts_the_other() {
    let days = |text| ticks(text, "UTC", "2026-01-01T12:00:00Z", 4).join(" ").replace(" 00:00:00 +00:00", "");
    assert_eq!(days("0 0 */2 * 1"), "01-05 01-19 02-09 02-23");
    assert_eq!(days("0 0 ?/2 * MON"), "01-05 01-19 02-09 02-23");
    assert_eq!(days("0 0 1 * */2"), "02-01 03-01 08-01 09-01");
    assert_eq!(days("0 0 0 */2,6 * 1"), "01-05 01-19 02-09 02-23");
    assert_eq!(days("0 0 1-31/2 * 1"), "01-03 01-05 01-07 01-09");
    assert_eq!(days("0 0 1 * 1"), "01-05 01-12 01-19 01-26");
    assert_eq!(days("0 0 3 * *"), "01-03 02-03 03-03 04-03");
    assert_eq!(days("0 0 * * 1"), "01-05 01-12 01-19 01-26");
}

#[test]
fn names_for_the_same_times_are_one_expression() {
    for (name, as_stored) in
        [("@midnight", "@daily"), ("@annually", "@yearly"), ("@Daily", "@daily"), ("@hourly", "@hourly")]
    {
        assert_eq!(Cron::new(name).unwrap().expression(), Some(as_stored));
        let sent = serde_json::from_str::<Cron>(&format!(r#"{{"cron":"{name}"}}"#)).unwrap();
        assert_eq!(sent.expression(), Some(as_stored));
    }
    assert_eq!(ticks("@midnight", "UTC", "2026-01-01T12:00:00Z", 1), ["01-02 00:00:00 +00:00"]);
    assert_eq!(ticks("@annually", "UTC", "2026-01-02T12:00:00Z", 1), ["01-01 00:00:00 +00:00"]);
}

#[test]
fn words_say_when_it_ticks() {
    for (text, words) in [
        ("*/5 * * * *", "At every 5 minutes."),
        ("*/45 * * * *", "At minute 0 and 45 past every hour."),
        ("0-30/10 * * * *", "At minute 0, 10, 20, and 30 past every hour."),
        ("*/20,*/30 * * * *", "At minute 0, 20, 30, and 40 past every hour."),
        ("*/60 * * * *", "At minute 0 past every hour."),
        ("* */2 * * *", "Every minute past hour 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, and 22."),
        ("0 */6 * * *", "At minute 0, of every 6 hours."),
        ("0 0 LW * *", "At 00:00, on the last weekday (Monday to Friday) of the month."),
        ("0 0 L * *", "At 00:00, on the last day of the month."),
        ("0 0 1 */5 *", "At 00:00, on day 1, in January, June, and November."),
        ("0 0 1 */3 *", "At 00:00, on day 1, in every 3 months."),
        ("0 0 */15 * MON", "At 00:00, on day 1, 16, and 31 (if it is also Monday)."),
        ("0 0 1,15 * MON", "At 00:00, on day 1 and 15 or Monday."),
    ] {
        assert_eq!(Cron::new(text).unwrap().describe(), words, "{text}");
    }
}
