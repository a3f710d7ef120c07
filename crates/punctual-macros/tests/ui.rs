//! Mistakes that users make, and what the compiler tells them: a located error in punctual's words, or in the compiler's
//! own where those are better.

#[test]
fn mistakes_are_told_where_they_are_made() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
