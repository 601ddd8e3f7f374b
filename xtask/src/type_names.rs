//! Checks that a type name is defined once in a crate, so that a reader need not ask which one is
//! meant.
//!
//! Structs, enums, traits and type aliases outside of tests count; associated types do not. Names
//! that are defined more than once today are in `xtask/type_names.toml`, a list that may only
//! shrink.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cargo;
use crate::sources::{self, Source};

const LIST: &str = "xtask/type_names.toml";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameList {
    /// Names that a crate defines more than once, by the folder of the crate.
    pending: BTreeMap<String, BTreeSet<String>>,
}

pub(crate) fn check() -> Result<()> {
    let text =
        std::fs::read_to_string(cargo::root().join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    let list: NameList = toml::from_str(&text).context(LIST)?;
    let sources = sources::read(&["rs"])?;
    let errors = errors(&list, &sources);
    if !errors.is_empty() {
        bail!("type names:\n  {}", errors.join("\n  "));
    }
    let pending: usize = list.pending.values().map(BTreeSet::len).sum();
    match pending {
        0 => println!("every type name is defined once in its crate"),
        _ => println!("every type name is defined once in its crate, but for {pending} that are pending"),
    }
    Ok(())
}

fn errors(list: &NameList, sources: &[Source]) -> Vec<String> {
    let found = duplicates(sources);
    let mut errors = Vec::new();
    for (folder, names) in &found {
        let pending = list.pending.get(folder);
        for (name, places) in names {
            if !pending.is_some_and(|pending| pending.contains(name)) {
                errors.push(format!(
                    "{folder} defines `{name}` {} times: {}",
                    places.len(),
                    places.join(", ")
                ));
            }
        }
    }
    for (folder, names) in &list.pending {
        let still = |name: &&String| !found.get(folder).is_some_and(|found| found.contains_key(*name));
        let gone = names.iter().filter(still);
        errors.extend(gone.map(|name| format!("{LIST}: {folder} defines `{name}` once; remove it")));
    }
    errors
}

/// Names that a crate defines more than once, with their places, by the crate.
fn duplicates(sources: &[Source]) -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let found: Vec<Definitions> = sources.iter().map(|source| definitions(&source.text)).collect();
    let modules = sources.iter().zip(&found).flat_map(|(source, found)| test_modules(&source.path, found));
    let tests: Vec<String> = modules.collect();
    let libraries: BTreeSet<&str> =
        sources.iter().filter_map(|source| source.path.strip_suffix("src/lib.rs")).collect();
    let mut crates: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (source, found) in sources.iter().zip(found) {
        let Some(folder) = crate_of(&source.path, &libraries) else { continue };
        let is_test = |module: &String| {
            let rest = source.path.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        if tests.iter().any(is_test) {
            continue;
        }
        for (name, line) in found.types {
            let places = crates.entry(folder.clone()).or_default().entry(name).or_default();
            places.push(format!("{}:{line}", source.path));
        }
    }
    for names in crates.values_mut() {
        names.retain(|_, places| places.len() > 1);
    }
    crates.retain(|_, names| !names.is_empty());
    crates
}

/// The crate of a file below `src`: the folder of its package, or the file of a program that has a
/// library beside it, since that is a crate of its own.
fn crate_of(path: &str, libraries: &BTreeSet<&str>) -> Option<String> {
    let (package, file) = path.split_once("src/")?;
    let has_library = libraries.contains(package);
    let is_program = file == "main.rs" || file.starts_with("bin/");
    Some(if has_library && is_program { path.to_owned() } else { package.trim_end_matches('/').to_owned() })
}

/// Paths, without their extension, of the modules that a file declares as tests.
fn test_modules(path: &str, found: &Definitions) -> Vec<String> {
    let Some((folder, file)) = path.rsplit_once('/') else { return Vec::new() };
    let stem = file.trim_end_matches(".rs");
    let folder = match stem {
        "mod" | "lib" | "main" => folder.to_owned(),
        _ => format!("{folder}/{stem}"),
    };
    found.test_modules.iter().map(|name| format!("{folder}/{name}")).collect()
}

#[derive(Default)]
struct Definitions {
    /// Types and the lines of their names.
    types: Vec<(String, usize)>,
    /// Modules with `#[cfg(test)]` that are files of their own.
    test_modules: Vec<String>,
}

fn definitions(text: &str) -> Definitions {
    let tokens = tokens(text);
    let mut found = Definitions::default();
    // Whether each open brace is that of an `impl` or a `trait`, whose types are associated ones.
    let mut braces: Vec<bool> = Vec::new();
    let mut associated_next = false;
    let mut at = 0;
    while let Some((token, _)) = tokens.get(at).copied() {
        let next = tokens.get(at + 1).copied();
        match token {
            "#" if is_test_attribute(&tokens[at..]) => {
                at = skip_item(&tokens, at, &mut found.test_modules);
                continue;
            }
            "impl" => associated_next = true,
            "struct" | "enum" | "trait" | "type" => {
                let is_associated = token == "type" && braces.last() == Some(&true);
                if let Some((name, line)) = next.filter(|(name, _)| is_type_name(name))
                    && !is_associated
                {
                    found.types.push((name.to_owned(), line));
                }
                associated_next |= token == "trait";
            }
            "{" => braces.push(std::mem::take(&mut associated_next)),
            "}" => drop(braces.pop()),
            ";" => associated_next = false,
            _ => {}
        }
        at += 1;
    }
    found
}

fn is_type_name(token: &str) -> bool {
    token.starts_with(char::is_uppercase)
}

/// Whether these tokens begin with `#[cfg(test)]`, `#[cfg(doctest)]` or `#[cfg(all(test, …))]`.
fn is_test_attribute(tokens: &[(&str, usize)]) -> bool {
    let begins = |with: &[&str]| with.iter().zip(tokens).all(|(wanted, (token, _))| wanted == token);
    begins(&["#", "[", "cfg", "(", "test", ")"])
        || begins(&["#", "[", "cfg", "(", "doctest", ")"])
        || begins(&["#", "[", "cfg", "(", "all", "(", "test"])
}

/// Skips an item with its attributes; returns where the next one begins.
fn skip_item(tokens: &[(&str, usize)], from: usize, test_modules: &mut Vec<String>) -> usize {
    let mut depth = 0_usize;
    let mut at = from;
    while let Some((token, _)) = tokens.get(at) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            "mod" if depth == 0 => {
                if let [(name, _), (";", _)] = tokens[at + 1..].get(..2).unwrap_or_default() {
                    test_modules.push((*name).to_owned());
                }
            }
            _ => {}
        }
        at += 1;
        if depth == 0 && matches!(*token, "}" | ";") {
            break;
        }
    }
    at
}

/// Identifiers and punctuation with their lines, without comments, texts and lifetimes.
fn tokens(text: &str) -> Vec<(&str, usize)> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => 1 + quoted(&rest[1..], '"'),
            '\'' => character(rest),
            _ if raw_text(rest).is_some() => raw_text(rest).unwrap_or(1),
            _ if first.is_alphabetic() || first == '_' => {
                let end = |c: char| !c.is_alphanumeric() && c != '_';
                let length = rest.find(end).unwrap_or(rest.len());
                tokens.push((&rest[..length], line));
                length
            }
            _ => {
                if !first.is_whitespace() {
                    tokens.push((&rest[..first.len_utf8()], line));
                }
                first.len_utf8()
            }
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    tokens
}

fn block_comment(text: &str) -> usize {
    text.find("*/").map_or(text.len(), |end| end + 2)
}

/// Length up to and with the closing quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of a character literal, or of the apostrophe of a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text[1..].chars();
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => 1 + quoted(&text[1..], '\''),
        (Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ => 1,
    }
}

/// Length of `r"…"`, `r#"…"#` or `br"…"`.
fn raw_text(text: &str) -> Option<usize> {
    let after = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - body.len();
    Some(body.find(&end).map_or(text.len(), |at| start + at + end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    fn types(text: &str) -> Vec<String> {
        definitions(text).types.into_iter().map(|(name, line)| format!("{name}:{line}")).collect()
    }

    #[test]
    fn types_are_found_with_their_lines() {
        let text = "pub struct A<'a>(&'a str);\n\npub(crate) enum B { C }\ntrait D {}\ntype E = u8;\n";
        assert_eq!(types(text), ["A:1", "B:3", "D:4", "E:5"]);
    }

    #[test]
    fn comments_texts_and_macro_variables_define_nothing() {
        let text = "// struct A;\n/* struct A; */\nlet a = \"struct A \\\" struct A\";\nlet b = r#\"struct \" A\"#;\n\
                    let c = '\"'; struct Real;\nlet d = '\\''; macro_rules! m { ($n:ident) => { struct $n; } }\n";
        assert_eq!(types(text), ["Real:5"]);
    }

    #[test]
    fn associated_types_and_tests_do_not_count() {
        let text = "impl Iterator for A {\n type Item = u8;\n fn f() { struct Inside; }\n}\ntrait T { type Out; }\n\
                    #[cfg(test)]\nmod tests { struct Hidden; mod more { struct Hidden; } }\n\
                    #[cfg(all(test, unix))]\nuse x;\n#[cfg(test)]\nstruct Hidden { a: [u8; 3] }\n\
                    #[cfg(unix)]\nstruct Shown;\nfn f() -> impl Fn() { todo!() }\ntype Alias = u8;\n";
        assert_eq!(types(text), ["Inside:3", "T:5", "Shown:13", "Alias:15"]);
    }

    #[test]
    fn a_name_that_is_defined_twice_in_a_crate_is_reported_and_one_in_two_crates_is_not() {
        let sources = [
            source("crates/x/src/lib.rs", "struct A;\nstruct B;\n"),
            source("crates/x/src/deep/b.rs", "\nenum A {}\n"),
            source("crates/x/src/main.rs", "struct B;\n"),
            source("crates/x/tests/t.rs", "struct A;\n"),
            source("crates/y/src/main.rs", "struct A;\nstruct B;\n"),
        ];
        let reported = "crates/x defines `A` 2 times: crates/x/src/lib.rs:1, crates/x/src/deep/b.rs:2";
        assert_eq!(errors(&NameList::default(), &sources), [reported]);
        let pending = |name: &str| NameList {
            pending: [("crates/x".to_owned(), BTreeSet::from([name.to_owned()]))].into(),
        };
        assert!(errors(&pending("A"), &sources).is_empty());
        let stale = errors(&pending("B"), &sources);
        assert_eq!(stale, [reported, "xtask/type_names.toml: crates/x defines `B` once; remove it"]);
    }

    #[test]
    fn modules_that_are_test_files_do_not_count() {
        let sources = [
            source("x/src/lib.rs", "struct A;\n#[cfg(test)]\nmod tests;\nmod b;\n"),
            source("x/src/tests.rs", "struct A;\n"),
            source("x/src/tests/more.rs", "struct A;\n"),
            source("x/src/b.rs", "#[cfg(test)]\npub(crate) mod model;\n"),
            source("x/src/b/model.rs", "struct A;\n"),
        ];
        assert!(errors(&NameList::default(), &sources).is_empty());
    }

    #[test]
    fn the_project_defines_type_names_once() {
        check().unwrap();
    }
}
