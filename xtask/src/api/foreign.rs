//! Other crates whose types appear in a public API. Such a crate is part of the API: a new major
//! version of it is a breaking change of ours. `xtask/foreign_types.toml` lists the crates that may
//! appear, each with a reason.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::items::ApiItem;
use crate::cargo;

const LIST: &str = "xtask/foreign_types.toml";

/// Reasons why a crate may appear, by the package in whose API it appears.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct AllowList(BTreeMap<String, BTreeMap<String, String>>);

impl AllowList {
    pub(crate) fn read() -> Result<Self> {
        let text = std::fs::read_to_string(cargo::root().join(LIST))
            .with_context(|| format!("cannot read {LIST}"))?;
        toml::from_str(&text).context(LIST)
    }

    pub(crate) fn reason(&self, package: &str, name: &str) -> Option<&str> {
        let reason = self.0.get(package)?.get(name)?;
        Some(reason.as_str()).filter(|reason| !reason.trim().is_empty())
    }
}

/// Lines of the items that name a foreign crate, by the crate.
pub(crate) fn uses(items: &[ApiItem]) -> BTreeMap<&str, Vec<&str>> {
    let mut uses: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for item in items {
        for name in &item.foreign {
            uses.entry(name).or_default().push(&item.line);
        }
    }
    uses
}

pub(crate) fn errors(package: &str, allowed: &AllowList, found: &BTreeMap<&str, Vec<&str>>) -> Vec<String> {
    let mut errors = Vec::new();
    for (name, places) in found {
        if allowed.reason(package, name).is_none() {
            errors.push(format!(
                "{package} has types of the crate `{name}` in its API (items: {}), such as\n  {}\n\
                 A breaking release of `{name}` would be one of {package}. Use a type of {package} instead, or \
                 add `{name} = \"<reason>\"` to [{package}] in {LIST}.",
                places.len(),
                places[0]
            ));
        }
    }
    for name in allowed.0.get(package).into_iter().flat_map(BTreeMap::keys) {
        if !found.contains_key(name.as_str()) {
            errors.push(format!("{LIST}: {package} has no type of the crate `{name}` in its API; remove it"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> AllowList {
        toml::from_str(text).unwrap()
    }

    fn found_in(name: &str) -> Vec<ApiItem> {
        let item = |line: &str, foreign: &[&str]| ApiItem {
            line: line.to_owned(),
            foreign: foreign.iter().map(|name| (*name).to_owned()).collect(),
        };
        vec![
            item("pub fn a::f()", &[]),
            item("pub fn a::g()", &[name, "chrono"]),
            item("pub fn a::h()", &[name]),
        ]
    }

    #[test]
    fn a_crate_without_a_reason_is_reported_with_its_first_item() {
        let items = found_in("sqlx_core");
        let found = uses(&items);
        assert!(errors("a", &list("[a]\nchrono = 'times'\nsqlx_core = 'pools'"), &found).is_empty());
        for without in [
            "[a]\nchrono = 'times'",
            "[a]\nchrono = 'times'\nsqlx_core = ' '",
            "[b]\nsqlx_core = 'pools'\n[a]\nchrono = 'times'",
        ] {
            let errors = errors("a", &list(without), &found);
            assert_eq!(errors.len(), 1, "{without}: {errors:?}");
            assert!(errors[0].starts_with(
                "a has types of the crate `sqlx_core` in its API (items: 2), such as\n  pub fn a::g()\n"
            ));
            assert!(errors[0].contains("add `sqlx_core = \"<reason>\"` to [a] in xtask/foreign_types.toml"));
        }
    }

    #[test]
    fn a_crate_that_no_longer_appears_is_reported() {
        let items = found_in("chrono");
        let errors = errors("a", &list("[a]\nchrono = 'times'\nuuid = 'keys'"), &uses(&items));
        assert_eq!(
            errors,
            ["xtask/foreign_types.toml: a has no type of the crate `uuid` in its API; remove it"]
        );
    }

    #[test]
    fn the_list_names_published_packages_and_has_a_reason_for_each_crate() {
        let AllowList(packages) = AllowList::read().unwrap();
        for (package, crates) in packages {
            assert!(super::super::PUBLISHED.contains(&package.as_str()), "{package}");
            assert!(crates.values().all(|reason| !reason.trim().is_empty()), "{package}");
        }
    }
}
