//! Checks that the tests which `docs/conformance.md` names exist.
//!
//! A name is `file.rs::test` in backticks. The file is found by the end of its path; the short
//! forms `cli/`, `web/` and `transports/` stand for the folders of these crates.

use anyhow::{Context, Result, bail, ensure};

use crate::cargo;
use crate::sources::{self, Source};

const PAGE: &str = "docs/conformance.md";
/// Far fewer names than the page has: the page or the pattern has changed.
const MIN_NAMES: usize = 500;

pub(crate) fn check() -> Result<()> {
    let page =
        std::fs::read_to_string(cargo::root().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let sources = sources::read(&["rs", "js"])?;
    let names: Vec<(&str, &str)> = names(&page).collect();
    ensure!(names.len() >= MIN_NAMES, "{PAGE} names {} tests, expected at least {MIN_NAMES}", names.len());
    let missing: Vec<String> = names
        .iter()
        .filter(|(file, test)| !exists(&sources, file, test))
        .map(|(file, test)| format!("{file}::{test}"))
        .collect();
    if !missing.is_empty() {
        bail!("{PAGE} names tests that do not exist:\n  {}", missing.join("\n  "));
    }
    println!("{} tests of {PAGE} exist", names.len());
    Ok(())
}

/// The names of a page: file and test.
fn names(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split('`').skip(1).step_by(2).filter_map(|code| {
        let (file, test) = code.split_once("::")?;
        let is_test = !test.is_empty() && test.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        (is_test && (file.ends_with(".rs") || file.ends_with(".js"))).then_some((file, test))
    })
}

/// Whether a file with this end of its path has the name as a word.
fn exists(sources: &[Source], file: &str, test: &str) -> bool {
    let (folder, end) = match file.split_once('/') {
        Some(("cli", end)) => ("crates/outbox-cli/", end),
        Some(("web", end)) => ("crates/outbox-web/", end),
        Some(("transports", end)) => ("crates/outbox-transports/", end),
        _ => ("", file),
    };
    sources.iter().any(|source| {
        source.path.strip_prefix(folder).is_some_and(|path| path == end || path.ends_with(&format!("/{end}")))
            && source.text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == test)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_files_and_tests_in_backticks() {
        let page = "| A-01 | `Outbox::write` | `a.rs::one_is_one`<br>`cli/b.rs::two` | `Tag::new` `c.rs` `x.rs::a b` |";
        assert_eq!(names(page).collect::<Vec<_>>(), [("a.rs", "one_is_one"), ("cli/b.rs", "two")]);
    }

    #[test]
    fn a_test_exists_in_a_file_with_that_end_of_its_path() {
        let source =
            |path: &str| Source { path: path.to_owned(), text: "async fn one_is_one() {}".to_owned() };
        let sources = [source("crates/outbox/tests/a.rs"), source("crates/outbox-cli/src/b.rs")];
        for (file, test) in [("a.rs", "one_is_one"), ("tests/a.rs", "one_is_one"), ("cli/b.rs", "one_is_one")]
        {
            assert!(exists(&sources, file, test), "{file}::{test}");
        }
        for (file, test) in [("a.rs", "one_is"), ("ba.rs", "one_is_one"), ("web/b.rs", "one_is_one")] {
            assert!(!exists(&sources, file, test), "{file}::{test}");
        }
    }
}
