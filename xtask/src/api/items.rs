//! Items of a public API, from the JSON of rustdoc. The crate `public-api` selects the items and
//! writes their lines; the JSON itself says which crates their types come from.

use std::collections::{BTreeSet, HashSet};

use anyhow::{Context, Result, ensure};
use public_api::PublicItem;
use serde_json::Value;

use crate::cargo;

/// Version of the JSON that the crate `public-api` reads.
const FORMAT: u64 = 57;

/// Crates of the standard library, which every API may use.
const STANDARD: [&str; 3] = ["alloc", "core", "std"];

/// One item of the public API.
#[derive(Debug, PartialEq)]
pub(crate) struct ApiItem {
    pub(crate) line: String,
    /// Other crates whose types or traits the item names.
    pub(crate) foreign: BTreeSet<String>,
}

/// Reads the items of a package, each once, in the order of their paths.
pub(crate) fn read(package: &str) -> Result<Vec<ApiItem>> {
    let path = cargo::target().join("doc").join(package.replace('-', "_")).with_extension("json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let json = Json(serde_json::from_str(&text).with_context(|| path.display().to_string())?);
    json.check_format()?;
    // Blanket impls are those of the crates that define the traits.
    let api = public_api::Builder::from_rustdoc_json(&path).omit_blanket_impls(true).build()?;
    let mut seen = HashSet::new();
    let mut items = Vec::new();
    for item in api.items() {
        let line = item.to_string();
        // An impl of a type with two paths is listed at both.
        if is_listed(&line, json.is_trait_function(item)) && seen.insert(line.clone()) {
            let foreign = json.foreign(item).with_context(|| line.clone())?;
            items.push(ApiItem { line, foreign });
        }
    }
    Ok(items)
}

/// Whether a line belongs into the snapshot. Functions of a trait impl follow from the trait.
fn is_listed(line: &str, trait_function: bool) -> bool {
    !trait_function && !line.contains("core::marker::StructuralPartialEq for ") && !is_usual_auto_trait(line)
}

/// Whether a line is an impl of an auto trait that users do not rely on, or expect of every type.
/// An impl of `Send`, `Sync` or `Unpin` counts if it is negative or has a condition, so that a type
/// that is no longer `Send` adds a line.
fn is_usual_auto_trait(line: &str) -> bool {
    const IGNORED: [&str; 4] = [
        "core::marker::Freeze",
        "core::marker::UnsafeUnpin",
        "core::panic::unwind_safe::UnwindSafe",
        "core::panic::unwind_safe::RefUnwindSafe",
    ];
    const EXPECTED: [&str; 3] = ["core::marker::Send", "core::marker::Sync", "core::marker::Unpin"];
    let is_impl_of = |name: &str| line.starts_with("impl") && line.contains(&format!("{name} for "));
    let is_negative = |name: &str| line.contains(&format!("!{name} for "));
    IGNORED.into_iter().any(is_impl_of)
        || EXPECTED
            .into_iter()
            .any(|name| is_impl_of(name) && !is_negative(name) && !line.contains(" where "))
}

/// The JSON of rustdoc: `index` has the items of the crate, `paths` the items that they name, and
/// `external_crates` the crates of the latter.
struct Json(Value);

impl Json {
    fn check_format(&self) -> Result<()> {
        let format = self.0["format_version"].as_u64().context("rustdoc's JSON has no format version")?;
        ensure!(
            format == FORMAT,
            "rustdoc writes JSON of format {format}, and `public-api` reads format {FORMAT}; use Rust 1.95, \
             or the release of `public-api` for this compiler (Cargo.toml, FORMAT in xtask/src/api/items.rs)"
        );
        Ok(())
    }

    fn inner(&self, id: u32) -> Option<&Value> {
        self.0["index"].get(id.to_string()).map(|item| &item["inner"])
    }

    fn is_trait_function(&self, item: &PublicItem) -> bool {
        let is_function = self.inner(item.id().0).is_some_and(|inner| inner.get("function").is_some());
        let parent = item.parent_id().and_then(|parent| self.inner(parent.0));
        is_function && parent.is_some_and(|parent| !parent["impl"]["trait"].is_null())
    }

    fn foreign(&self, item: &PublicItem) -> Result<BTreeSet<String>> {
        let inner = self.inner(item.id().0).context("not in the index of rustdoc's JSON")?;
        let mut names = BTreeSet::new();
        self.collect(inner, &mut names);
        Ok(names)
    }

    /// Collects the crates of all paths and re-exports in a part of an item.
    fn collect(&self, part: &Value, names: &mut BTreeSet<String>) {
        match part {
            Value::Array(parts) => parts.iter().for_each(|part| self.collect(part, names)),
            Value::Object(fields) => {
                let is_name = fields.contains_key("path") || fields.contains_key("source");
                let id = fields.get("id").and_then(Value::as_u64).filter(|_| is_name);
                names.extend(id.and_then(|id| self.crate_of(id)));
                fields.values().for_each(|part| self.collect(part, names));
            }
            _ => {}
        }
    }

    /// The crate of an item, unless it is this one, which `external_crates` does not contain, or
    /// one of the standard library.
    fn crate_of(&self, id: u64) -> Option<String> {
        let number = self.0["paths"].get(id.to_string())?["crate_id"].as_u64()?;
        let name = self.0["external_crates"].get(number.to_string())?["name"].as_str()?;
        (!STANDARD.contains(&name)).then(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_type_that_is_not_send_or_only_sometimes_is_listed() {
        for listed in [
            "impl !core::marker::Sync for a::A",
            "impl<T> core::marker::Send for a::A<T> where T: core::marker::Send",
            "impl core::clone::Clone for a::A",
            "pub fn a::f<T: core::marker::Send>(T)",
            "pub type a::A::Error = a::B",
        ] {
            assert!(is_listed(listed, false), "{listed}");
        }
        for usual in [
            "impl core::marker::Send for a::A",
            "impl<T> core::marker::Unpin for a::A<T>",
            "impl !core::panic::unwind_safe::UnwindSafe for a::A",
            "impl !core::marker::Freeze for a::A",
            "impl<T> core::marker::UnsafeUnpin for a::A<T> where T: core::marker::UnsafeUnpin",
            "impl core::marker::StructuralPartialEq for a::A",
        ] {
            assert!(!is_listed(usual, false), "{usual}");
        }
        assert!(!is_listed("pub fn a::A::clone(&self) -> Self", true));
    }

    fn example() -> Json {
        Json(json!({
            "format_version": FORMAT,
            "paths": {
                "1": { "crate_id": 0 },
                "2": { "crate_id": 1 },
                "3": { "crate_id": 2 },
                "4": { "crate_id": 3 },
            },
            "external_crates": {
                "1": { "name": "core" },
                "2": { "name": "chrono" },
                "3": { "name": "sqlx_core" },
            },
        }))
    }

    fn crates_in(part: &Value) -> Vec<String> {
        let mut names = BTreeSet::new();
        example().collect(part, &mut names);
        names.into_iter().collect()
    }

    #[test]
    fn crates_of_nested_types_and_of_re_exports_are_found() {
        let own = json!({ "resolved_path": { "path": "A", "id": 1, "args": null } });
        assert!(crates_in(&own).is_empty());
        let nested = json!({ "function": { "inputs": [["a", { "resolved_path": {
            "path": "Option", "id": 2,
            "args": { "args": [{ "type": { "resolved_path": { "path": "Utc", "id": 3 } } }] },
        } }]] } });
        assert_eq!(crates_in(&nested), ["chrono"]);
        let re_export = json!({ "use": { "source": "sqlx::Pool", "name": "Pool", "id": 4 } });
        assert_eq!(crates_in(&re_export), ["sqlx_core"]);
        // Ids of fields and impls are no types of the item itself.
        assert!(
            crates_in(&json!({ "struct": { "impls": [3, 4], "kind": { "plain": { "fields": [3] } } } }))
                .is_empty()
        );
    }

    #[test]
    fn json_of_another_format_is_refused_with_advice() {
        assert!(example().check_format().is_ok());
        let error = Json(json!({ "format_version": FORMAT + 1 })).check_format().unwrap_err();
        assert!(error.to_string().contains("use Rust 1.95"), "{error}");
    }
}
