//! Snapshots of the public API: `crates/<crate>/api.txt`, one line for each item.

use std::collections::HashSet;

use anyhow::{Context, Result};

use super::items::ApiItem;
use crate::cargo;

fn path(package: &str) -> String {
    format!("crates/{package}/api.txt")
}

/// Replaces the snapshot of a package; returns its path.
pub(crate) fn write(package: &str, items: &[ApiItem]) -> Result<String> {
    let path = path(package);
    let text: String = items.iter().map(|item| format!("{}\n", item.line)).collect();
    std::fs::write(cargo::root().join(&path), text).with_context(|| format!("cannot write {path}"))?;
    Ok(path)
}

/// Compares the items of a package with its snapshot and describes the difference.
pub(crate) fn error(package: &str, items: &[ApiItem]) -> Result<Option<String>> {
    let path = path(package);
    let snapshot = std::fs::read_to_string(cargo::root().join(&path))
        .with_context(|| format!("cannot read {path}; `cargo xtask api --bless` writes it"))?;
    let lines: Vec<&str> = items.iter().map(|item| item.line.as_str()).collect();
    let changes = difference(&snapshot.lines().collect::<Vec<_>>(), &lines);
    Ok((!changes.is_empty()).then(|| {
        format!(
            "{path} is not the public API of {package}:\n  {}\n\
             If the change is intended, run `cargo xtask api --bless`, commit {path}, and name what users must \
             change in CHANGELOG.md.",
            changes.join("\n  ")
        )
    }))
}

/// Lines that were removed (`-`) and added (`+`); the lines of one item stand together. The order
/// of the lines does not count.
fn difference(old: &[&str], new: &[&str]) -> Vec<String> {
    let (in_old, in_new): (HashSet<_>, HashSet<_>) = (old.iter().collect(), new.iter().collect());
    let removed = old.iter().filter(|line| !in_new.contains(line)).map(|line| ('-', line));
    let added = new.iter().filter(|line| !in_old.contains(line)).map(|line| ('+', line));
    let mut changes: Vec<_> = removed.chain(added).collect();
    // Stable: the lines of one item keep their order, removed ones first.
    changes.sort_by_key(|(_, line)| subject(line));
    changes.into_iter().map(|(sign, line)| format!("{sign} {line}")).collect()
}

/// The path of the item that a line describes: the type of an impl, otherwise the first path.
fn subject(line: &str) -> &str {
    let described =
        line.strip_prefix("impl").and_then(|rest| rest.split_once(" for ")).map_or(line, |(_, of)| of);
    let path = described.split(' ').find(|word| word.contains("::")).unwrap_or(described);
    let end = path.find(['(', '<']).unwrap_or(path.len());
    path[..end].trim_end_matches(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_items_in_another_order_do_not_differ() {
        assert!(difference(&["pub mod a", "pub fn a::f()"], &["pub fn a::f()", "pub mod a"]).is_empty());
    }

    #[test]
    fn a_changed_item_shows_its_old_line_before_its_new_one() {
        let old = ["pub mod a", "pub fn a::f(u8)", "pub a::S::x: u8", "pub struct a::Gone"];
        let new = ["pub mod a", "pub fn a::New::g()", "pub fn a::f(u16)", "pub a::S::x: u16"];
        let shown = [
            "- pub struct a::Gone",
            "+ pub fn a::New::g()",
            "- pub a::S::x: u8",
            "+ pub a::S::x: u16",
            "- pub fn a::f(u8)",
            "+ pub fn a::f(u16)",
        ];
        assert_eq!(difference(&old, &new), shown);
    }

    #[test]
    fn lines_are_sorted_by_the_item_that_they_describe() {
        for (line, item) in [
            ("pub fn a::S<T>::f(&self, b::B) -> c::C", "a::S"),
            ("pub a::S::x: core::option::Option<u8>", "a::S::x"),
            ("#[non_exhaustive] pub enum a::E", "a::E"),
            ("impl<T: b::B> core::clone::Clone for a::S<T>", "a::S"),
            ("impl a::S", "a::S"),
            ("pub type a::S::Error = b::B", "a::S::Error"),
        ] {
            assert_eq!(subject(line), item, "{line}");
        }
    }

    #[test]
    fn the_error_says_how_to_accept_the_change() {
        let item = |line: &str| ApiItem { line: line.to_owned(), foreign: [].into() };
        let text = error("outbox", &[item("pub fn outbox::no_such_item()")]).unwrap().unwrap();
        assert!(text.contains("\n  + pub fn outbox::no_such_item()"), "{text}");
        assert!(text.contains("`cargo xtask api --bless`"), "{text}");
        assert!(error("no-such-package", &[]).is_err());
    }
}
