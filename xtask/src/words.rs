//! Checks the language of all tracked files against `xtask/words.toml`: words to avoid, comments
//! that begin with a banned word, and Rust comments that are too long.
//!
//! Paths that are not converted yet are `pending`: each has a number of findings that may only
//! fall.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cargo;
use crate::sources::{self, Source};

const LIST: &str = "xtask/words.toml";

/// Files that must contain such words: this list, and the list of pending type names.
const UNCHECKED: [&str; 2] = [LIST, "xtask/type_names.toml"];

/// Findings that are printed for a path with too many.
const SHOWN: usize = 30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WordList {
    /// Extensions of the checked files.
    extensions: Vec<String>,
    /// Maximum width of a comment line in Rust, in characters.
    comment_columns: usize,
    rule: Vec<Rule>,
    #[serde(default)]
    allow: Vec<Allow>,
    #[serde(default)]
    pending: Vec<Pending>,
}

/// Words with the same advice.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    words: Vec<String>,
    /// The words to write instead.
    advice: String,
    #[serde(default)]
    at: Place,
}

/// Where a word is reported.
#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Place {
    /// Anywhere, in upper or lower case; the list has it in lower case. `_` separates words, so
    /// identifiers are covered.
    #[default]
    Anywhere,
    /// Anywhere, in exactly this case: for type names and constants.
    ExactCase,
    /// As the first word of a comment line.
    CommentStart,
}

/// A legitimate use: one line of one file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Allow {
    path: String,
    word: String,
    /// The whole line, without the blanks around it.
    line: String,
    reason: String,
}

/// A path that is not converted yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    path: String,
    /// Number of findings. It must be lowered when findings are removed.
    max: usize,
}

#[derive(Debug, PartialEq)]
struct Finding {
    path: String,
    line: usize,
    word: String,
    advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.word, self.advice)
    }
}

pub(crate) fn check() -> Result<()> {
    let text =
        std::fs::read_to_string(cargo::root().join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    let list: WordList = toml::from_str(&text).context(LIST)?;
    let sources = sources::read(&list.extensions)?;
    let pending: usize = list.pending.iter().map(|pending| pending.max).sum();
    let errors = errors(&list, &sources);
    if !errors.is_empty() {
        bail!("language:\n  {}", errors.join("\n  "));
    }
    println!("{} files; {pending} findings in paths that are pending", sources.len());
    Ok(())
}

fn errors(list: &WordList, sources: &[Source]) -> Vec<String> {
    let mut errors = missing_reasons(list);
    let mut used = vec![false; list.allow.len()];
    let mut by_pending: BTreeMap<usize, Vec<Finding>> = BTreeMap::new();
    for source in sources {
        if UNCHECKED.contains(&source.path.as_str()) {
            continue;
        }
        let mut findings = findings(list, source);
        let lines: Vec<&str> = source.text.lines().collect();
        findings.retain(|finding| {
            let allowed = list.allow.iter().position(|allow| {
                allow.path == finding.path
                    && allow.word == finding.word
                    && allow.line == lines[finding.line - 1].trim()
            });
            allowed.inspect(|n| used[*n] = true).is_none()
        });
        match list.pending.iter().position(|pending| source.path.starts_with(&pending.path)) {
            Some(n) => by_pending.entry(n).or_default().extend(findings),
            None => errors.extend(findings.iter().map(ToString::to_string)),
        }
    }
    for (n, pending) in list.pending.iter().enumerate() {
        errors.extend(ratchet(pending, by_pending.get(&n).map_or(&[], Vec::as_slice)));
    }
    let unused = list.allow.iter().zip(used).filter(|(_, used)| !used);
    errors.extend(unused.map(|(allow, _)| {
        format!("{LIST}: the allowed use of `{}` in {} does not exist; remove it", allow.word, allow.path)
    }));
    errors
}

fn missing_reasons(list: &WordList) -> Vec<String> {
    let missing = list.allow.iter().filter(|allow| allow.reason.trim().is_empty());
    missing.map(|allow| format!("{LIST}: the allowed use in {} has no reason", allow.path)).collect()
}

/// The number of findings of a pending path may only fall, and the list must say how many are left.
fn ratchet(pending: &Pending, findings: &[Finding]) -> Vec<String> {
    let (path, max, count) = (&pending.path, pending.max, findings.len());
    if count == 0 {
        return vec![format!("{LIST}: {path} has no findings; remove it from `pending`")];
    }
    if count < max {
        return vec![format!("{LIST}: {path} has {count} findings; set `max = {count}`")];
    }
    if count == max {
        return Vec::new();
    }
    let mut errors: Vec<String> = findings.iter().take(SHOWN).map(ToString::to_string).collect();
    errors.push(format!("{path} has {count} findings, and at most {max} are allowed ({SHOWN} are shown)"));
    errors
}

fn findings(list: &WordList, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |line: usize, word: &str, advice: &str| {
        let (word, advice) = (word.to_owned(), advice.to_owned());
        findings.push(Finding { path: source.path.clone(), line, word, advice });
    };
    let lower = source.text.to_ascii_lowercase();
    let line_ends: Vec<usize> = source.text.match_indices('\n').map(|(end, _)| end).collect();
    for rule in &list.rule {
        for word in &rule.words {
            let lines = match rule.at {
                Place::Anywhere => lines_with(&lower, &line_ends, word),
                Place::ExactCase => lines_with(&source.text, &line_ends, word),
                Place::CommentStart => lines_that_begin_with(source, word),
            };
            lines.into_iter().for_each(|line| add(line, word, &rule.advice));
        }
    }
    let advice = format!("wrap comments at {} columns", list.comment_columns);
    long_comments(list, source).into_iter().for_each(|line| add(line, "long comment", &advice));
    findings.sort_by_key(|finding| finding.line);
    findings
}

/// Numbers of the lines with a word. The whole text is searched at once, which is much faster than
/// each line for each word.
fn lines_with(text: &str, line_ends: &[usize], word: &str) -> BTreeSet<usize> {
    let is_word = |start: usize| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    };
    let starts = text.match_indices(word).map(|(start, _)| start).filter(|start| is_word(*start));
    starts.map(|start| 1 + line_ends.partition_point(|end| *end < start)).collect()
}

fn lines_that_begin_with(source: &Source, word: &str) -> BTreeSet<usize> {
    let begins = |line: &str| comment(line, &source.path).is_some_and(|text| starts_with_word(text, word));
    let lines = (1..).zip(source.text.lines()).filter(|(_, line)| begins(line));
    lines.map(|(number, _)| number).collect()
}

fn long_comments(list: &WordList, source: &Source) -> Vec<usize> {
    let mut long = Vec::new();
    let mut in_code_block = false;
    for (number, line) in (1..).zip(source.text.lines()) {
        let Some(text) = comment(line, &source.path).filter(|_| source.path.ends_with(".rs")) else {
            in_code_block = false;
            continue;
        };
        if text.starts_with("```") {
            in_code_block = !in_code_block;
        } else if !in_code_block && line.chars().count() > list.comment_columns && can_wrap(text) {
            long.push(number);
        }
    }
    long
}

/// Whether a comment line can be wrapped: not a row of a table, a link's target or a single long
/// word.
fn can_wrap(comment: &str) -> bool {
    let is_link = comment.starts_with('[') && comment.contains("]: ");
    !comment.starts_with('|') && !is_link && comment.contains(' ')
}

/// The text of a line that is only a comment.
fn comment<'a>(line: &'a str, path: &str) -> Option<&'a str> {
    let markers: &[&str] = match path.rsplit_once('.')?.1 {
        "rs" => &["///", "//!", "//"],
        "js" | "mjs" => &["//", "/**", "/*", "*"],
        "sql" => &["--"],
        "toml" | "py" | "yaml" | "yml" => &["#"],
        "html" => &["<!--"],
        _ => return None,
    };
    let line = line.trim_start();
    markers.iter().find_map(|marker| line.strip_prefix(marker)).map(str::trim)
}

fn starts_with_word(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| rest.starts_with(|c: char| !c.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        extensions = ["rs"]
        comment_columns = 40
        [[rule]]
        words = ["gremlin", "imp"]
        advice = "write component"
        [[rule]]
        words = ["Goblin"]
        at = "exact-case"
        advice = "write Worker"
        [[rule]]
        words = ["Which"]
        at = "comment-start"
        advice = "begin with a noun"
    "#;

    fn list(more: &str) -> WordList {
        toml::from_str(&format!("{RULES}{more}")).unwrap()
    }

    fn errors_in(more: &str, files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source { path: (*path).into(), text: (*text).into() };
        errors(&list(more), &files.iter().map(source).collect::<Vec<_>>())
    }

    #[test]
    fn a_word_is_reported_with_its_place_and_the_advice() {
        let text = "fn a() {}\nlet name = \"a Gremlin waits\";\nfn the_imp_is_here() {}\nimpl Import for Simple {}\n";
        assert_eq!(
            errors_in("", &[("a.rs", text)]),
            ["a.rs:2: gremlin: write component", "a.rs:3: imp: write component"]
        );
    }

    #[test]
    fn a_name_is_reported_in_its_own_case_only() {
        let text = "struct Goblin;\nlet goblin = Goblins;\n";
        assert_eq!(errors_in("", &[("a.rs", text)]), ["a.rs:1: Goblin: write Worker"]);
    }

    #[test]
    fn only_a_comment_that_begins_with_the_word_is_reported() {
        let text = "/// Which one.\n//Which\n// Which: so\n/// One which is.\nWhich\n//! Whichever.\n";
        assert_eq!(
            errors_in("", &[("a.rs", text)]),
            ["a.rs:1: Which: begin with a noun", "a.rs:3: Which: begin with a noun"]
        );
        assert_eq!(errors_in("", &[("a.sql", "-- Which rows.\n")]).len(), 1);
        assert!(errors_in("", &[("a.md", "# Which\n")]).is_empty(), "a heading is no comment");
    }

    #[test]
    fn long_comments_are_reported_in_characters_unless_they_cannot_wrap() {
        let long = format!("// {} {}\n", "é".repeat(18), "é".repeat(19));
        assert_eq!(errors_in("", &[("a.rs", &long)]), ["a.rs:1: long comment: wrap comments at 40 columns"]);
        let fits = format!("// {} {}\n", "é".repeat(18), "é".repeat(18));
        for fine in [
            fits,
            format!("let a = 1; {}\n", "x ".repeat(40)),
            format!("/// | {} |\n", "x ".repeat(40)),
            format!("/// ```\n/// {}\n/// ```\n", "x ".repeat(40)),
            format!("/// [`a`]: {} b\n", "x".repeat(40)),
            format!("// https://{}\n", "x".repeat(40)),
        ] {
            assert!(errors_in("", &[("a.rs", &fine)]).is_empty(), "{fine}");
            assert!(errors_in("", &[("a.md", &fine)]).is_empty(), "{fine}");
        }
    }

    #[test]
    fn an_allowed_line_is_not_reported_and_one_that_is_gone_is() {
        let allow = "[[allow]]\npath = 'a.rs'\nword = 'imp'\nline = 'the imp'\nreason = 'a citation'\n";
        assert!(errors_in(allow, &[("a.rs", "  the imp\n")]).is_empty());
        assert_eq!(errors_in(allow, &[("a.rs", "the imp\nan imp\n")]).len(), 1);
        let gone = ["xtask/words.toml: the allowed use of `imp` in a.rs does not exist; remove it"];
        assert_eq!(errors_in(allow, &[("a.rs", "nothing\n")]), gone);
        let unexplained = allow.replace("a citation", " ");
        assert_eq!(errors_in(&unexplained, &[("a.rs", "the imp\n")]).len(), 1);
    }

    #[test]
    fn the_findings_of_a_pending_path_may_only_fall() {
        let pending = "[[pending]]\npath = 'old/'\nmax = 2\n";
        let found = |text: &str| errors_in(pending, &[("old/a.rs", text)]);
        assert!(found("imp\nimp\n").is_empty());
        assert_eq!(found("imp\n"), ["xtask/words.toml: old/ has 1 findings; set `max = 1`"]);
        assert_eq!(found("fine\n"), ["xtask/words.toml: old/ has no findings; remove it from `pending`"]);
        let more = found("imp\nimp\nimp\n");
        assert_eq!(more.len(), 4, "{more:?}");
        assert_eq!(more[3], "old/ has 3 findings, and at most 2 are allowed (30 are shown)");
        assert_eq!(errors_in(pending, &[("old/a.rs", "imp\nimp\n"), ("new/a.rs", "imp\n")]).len(), 1);
    }

    #[test]
    fn the_list_itself_is_not_checked() {
        assert!(errors_in("", &[(LIST, "imp\n")]).is_empty());
    }

    #[test]
    fn the_project_keeps_to_its_words() {
        check().unwrap();
    }
}
