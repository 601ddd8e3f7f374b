//! Reads a settings file piece by piece, so that all mistakes are found at once, each with its place.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};

use super::fields::fields;
use super::mistake::{Mistake, reword};

pub(crate) type Entry<'i> = (Spanned<DeString<'i>>, Spanned<DeValue<'i>>);

/// A file, and what was found in it so far.
pub(crate) struct Reader<'i> {
    pub(crate) text: &'i str,
    root: DeTable<'i>,
    environment: &'i BTreeMap<String, String>,
    pub(crate) mistakes: Vec<Mistake>,
    pub(crate) warnings: Vec<Mistake>,
    /// As it was written, by the names at the top: to tell what has changed.
    pub(crate) written: BTreeMap<String, toml::Value>,
    /// Where the names of tables stand that have been taken.
    places: BTreeMap<(String, String), Range<usize>>,
}

impl<'i> Reader<'i> {
    pub(crate) fn new(text: &'i str, environment: &'i BTreeMap<String, String>) -> Self {
        let (root, errors) = DeTable::parse_recoverable(text);
        let root = spelled(root.into_inner(), '_', '-');
        let mut reader = Self {
            text,
            root,
            environment,
            mistakes: Vec::new(),
            warnings: Vec::new(),
            written: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        for error in errors {
            reader.note(&error);
        }
        reader
    }

    /// Whether it is TOML at all.
    pub(crate) fn is_sound(&self) -> bool {
        self.mistakes.is_empty()
    }

    fn note(&mut self, error: &toml::de::Error) {
        let span = error.span().unwrap_or_default();
        self.wrong(&span, reword(error.message()));
    }

    /// Something is wrong there.
    pub(crate) fn wrong(&mut self, span: &Range<usize>, reason: impl Into<String>) {
        self.mistakes.push(Mistake::at(self.text, span, reason));
    }

    /// Something is odd there.
    pub(crate) fn odd(&mut self, span: &Range<usize>, reason: impl Into<String>) {
        self.warnings.push(Mistake::at(self.text, span, reason));
    }

    /// Where a setting of a table stands: its value, or its name if it is a table itself.
    pub(crate) fn place(&self, table: &str, setting: &str) -> Range<usize> {
        self.places.get(&(table.to_owned(), setting.to_owned())).cloned().unwrap_or_default()
    }

    /// The piece of this name, if it is there. It is not there any more then.
    pub(crate) fn take(&mut self, name: &str) -> Option<Entry<'i>> {
        let entry = self.root.remove_entry(name)?;
        let written = toml::Value::deserialize(ValueDeserializer::from(entry.1.clone()));
        self.written.extend(written.map(|value| (name.to_owned(), value)));
        if let DeValue::Table(table) = entry.1.get_ref() {
            let place = |key: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>| match value.get_ref() {
                DeValue::Table(_) => key.span(),
                _ => value.span(),
            };
            let places =
                table.iter().map(|(key, value)| ((name.to_owned(), key.to_string()), place(key, value)));
            self.places.extend(places);
        }
        Some(entry)
    }

    /// What a value says.
    pub(crate) fn read<T: Deserialize<'i>>(&mut self, mut value: Spanned<DeValue<'i>>) -> Option<T> {
        if let DeValue::Table(table) = value.get_mut() {
            *table = spelled(std::mem::take(table), '_', '-');
        }
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(read) => Some(read),
            Err(error) => {
                self.note(&error);
                None
            }
        }
    }

    /// A table of settings, each of which the environment may set otherwise.
    pub(crate) fn group<T: DeserializeOwned + Default>(&mut self, name: &str) -> T {
        let (span, mut table) = match self.take(name) {
            Some((_, value)) => match (value.span(), value.into_inner()) {
                (span, DeValue::Table(table)) => (span, spelled(table, '_', '-')),
                (span, other) => {
                    // Says what is wrong with it.
                    return self.read(Spanned::new(span, other)).unwrap_or_default();
                }
            },
            None => (0..0, DeTable::new()),
        };
        self.override_with::<T>(name, &mut table);
        self.read(Spanned::new(span, DeValue::Table(table))).unwrap_or_default()
    }

    /// The settings that are in no table.
    pub(crate) fn general<T: DeserializeOwned + Default>(&mut self) -> T {
        let mut table = DeTable::new();
        table.extend(fields::<T>().iter().filter_map(|name| self.take(name)));
        self.override_with::<T>("", &mut table);
        self.read(Spanned::new(0..0, DeValue::Table(table))).unwrap_or_default()
    }

    /// Whether the file or the environment says anything of this group.
    pub(crate) fn has<T: DeserializeOwned>(&self, name: &str) -> bool {
        let named = |setting: &&'static str| self.environment.contains_key(&variable(name, setting));
        self.root.contains_key(name) || fields::<T>().iter().any(named)
    }

    /// Puts in what the environment says.
    fn override_with<T: DeserializeOwned>(&mut self, group: &str, table: &mut DeTable<'i>) {
        for setting in fields::<T>() {
            let name = variable(group, setting);
            let Some(said) = self.environment.get(&name) else { continue };
            let value = Spanned::new(0..0, value(said));
            let key = || Spanned::new(0..0, Cow::Borrowed(*setting));
            // Alone first, so that it is known who is to blame.
            let mut alone = DeTable::new();
            alone.insert(key(), value.clone());
            let alone = Spanned::new(0..0, DeValue::Table(alone));
            match T::deserialize(ValueDeserializer::from(alone)) {
                Ok(_) => drop(table.insert(key(), value)),
                Err(error) if error.message().starts_with("missing field") => {
                    drop(table.insert(key(), value));
                }
                Err(error) => self.mistakes.push(Mistake::of_variable(&name, reword(error.message()))),
            }
        }
    }

    /// What nobody has asked for.
    pub(crate) fn rest(&mut self) -> Vec<(String, Range<usize>)> {
        let rest = std::mem::take(&mut self.root);
        rest.into_iter().map(|(key, _)| (key.get_ref().to_string(), key.span())).collect()
    }
}

/// The same with the names of settings spelled in one way: `batch_size` is `batch-size`.
pub(crate) fn spelled<'i>(table: DeTable<'i>, from: char, to: char) -> DeTable<'i> {
    let spell = |key: Spanned<DeString<'i>>| {
        let span = key.span();
        let name = key.into_inner();
        let is_right = !name.contains(from);
        Spanned::new(span, if is_right { name } else { Cow::Owned(name.replace(from, &to.to_string())) })
    };
    table.into_iter().map(|(key, value)| (spell(key), value)).collect()
}

/// `OUTBOX_POLLER_BATCH_SIZE` for `batch-size` of `poller`.
pub(crate) fn variable(group: &str, setting: &str) -> String {
    let group = if group.is_empty() { String::new() } else { format!("{group}_") };
    format!("OUTBOX_{group}{setting}").replace('-', "_").to_uppercase()
}

/// A truth value or a whole number is taken as that, all else as a text, word for word.
fn value(said: &str) -> DeValue<'_> {
    let is_number = !said.is_empty() && said.bytes().all(|byte| byte.is_ascii_digit());
    match DeValue::parse(said) {
        Ok(value) if is_number || matches!(said, "true" | "false") => value.into_inner(),
        _ => DeValue::String(Cow::Owned(said.replace('$', "$$"))),
    }
}
