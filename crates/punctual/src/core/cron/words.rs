//! An expression in words. `croner` writes the sentence.

/// Describes an expression.
///
/// croner names a field by the step of its last item, whatever else is in the list and wherever the steps end. So a
/// field keeps its step only if its values are as far apart across the end of the field.
pub(super) fn describe(text: &str, pattern: &croner::Cron) -> String {
    let mut pattern = pattern.pattern.clone();
    pattern.seconds.step = even_step(&pattern.seconds.values(), 0, 60);
    pattern.minutes.step = even_step(&pattern.minutes.values(), 0, 60);
    pattern.hours.step = even_step(&pattern.hours.values(), 0, 24);
    pattern.months.step = even_step(&pattern.months.values(), 1, 13);
    if pattern.minutes.values().len() == 60 {
        // Otherwise croner writes "Every minute past of every 2 hours".
        pattern.hours.step = 1;
    }
    let words = pattern.describe();
    let has_last_weekday = text.split([' ', '\t', ',']).any(|item| item.eq_ignore_ascii_case("LW"));
    if has_last_weekday {
        // croner has one sentence for L and LW, and only one of them can be in a field.
        return words
            .replace("the last day of the month", "the last weekday (Monday to Friday) of the month");
    }
    words
}

/// Returns the step by which values go round a whole field, from `start` to before `end`, or 1.
fn even_step(values: &[u16], start: u16, end: u16) -> u16 {
    let [first, second, ..] = *values else { return 1 };
    let step = second - first;
    let is_even = values.windows(2).all(|pair| pair[1] - pair[0] == step);
    let goes_round = first == start && values.last().is_some_and(|last| last + step == end);
    if is_even && goes_round { step } else { 1 }
}
