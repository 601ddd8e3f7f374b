//! Reads a settings file piece by piece, so that all mistakes are reported together, each with its
//! location.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};

use super::environment::{Environment, Variable};
use super::fields::fields;
use super::mistake::{Mistake, reword};
use super::names::OtherName;

/// A name and its value, with their locations.
pub type Entry<'i> = (Spanned<DeString<'i>>, Spanned<DeValue<'i>>);

/// A file, the environment, and the mistakes found in them so far.
pub struct Reader<'i> {
    pub text: &'i str,
    root: DeTable<'i>,
    environment: &'i Environment,
    pub mistakes: Vec<Mistake>,
    pub warnings: Vec<Mistake>,
    /// Values as they are written, by top-level name: to detect changes.
    pub written: BTreeMap<String, toml::Value>,
    /// Locations of settings, by table and name.
    places: BTreeMap<(String, String), SettingSource>,
}

/// Where a setting was given.
enum SettingSource {
    Span(Range<usize>),
    Variable(String),
}

impl<'i> Reader<'i> {
    pub fn new(text: &'i str, environment: &'i Environment) -> Self {
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut reader = Self {
            text,
            root: DeTable::new(),
            environment,
            mistakes: Vec::new(),
            warnings: Vec::new(),
            written: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        for error in errors {
            reader.note(&error);
        }
        reader.root = reader.spelled(root.into_inner(), '_', '-');
        reader
    }

    /// Whether no mistake was found so far. Right after `new`: whether the text is TOML at all.
    pub fn is_sound(&self) -> bool {
        self.mistakes.is_empty()
    }

    fn note(&mut self, error: &toml::de::Error) {
        let span = error.span().unwrap_or_default();
        self.wrong(&span, reword(error.message()));
    }

    /// Reports a mistake at a location in the text.
    pub fn wrong(&mut self, span: &Range<usize>, reason: impl Into<String>) {
        self.mistakes.push(Mistake::at(self.text, span, reason));
    }

    /// Reports a mistake in a setting where it was given: in the file, or by a variable.
    pub fn wrong_setting(&mut self, table: &str, setting: &str, reason: impl Into<String>) {
        let mistake = match self.places.get(&(table.to_owned(), setting.to_owned())) {
            Some(SettingSource::Span(span)) => Mistake::at(self.text, span, reason),
            Some(SettingSource::Variable(name)) => Mistake::of_variable(name, reason),
            None => Mistake::of_file(reason),
        };
        self.mistakes.push(mistake);
    }

    /// Reports a warning at a location in the text.
    pub fn odd(&mut self, span: &Range<usize>, reason: impl Into<String>) {
        self.warnings.push(Mistake::at(self.text, span, reason));
    }

    /// Location of a table's setting in the text: its value, or its name if the setting is a table
    /// itself.
    pub fn place(&self, table: &str, setting: &str) -> Range<usize> {
        match self.places.get(&(table.to_owned(), setting.to_owned())) {
            Some(SettingSource::Span(span)) => span.clone(),
            _ => 0..0,
        }
    }

    /// Takes the piece of this name out of the file.
    pub fn take(&mut self, name: &str) -> Option<Entry<'i>> {
        let entry = self.root.remove_entry(name)?;
        self.written.extend(plain(&entry.1).map(|value| (name.to_owned(), value)));
        if let DeValue::Table(table) = entry.1.get_ref() {
            self.note_places(name, table);
        }
        Some(entry)
    }

    fn note_places(&mut self, name: &str, table: &DeTable<'i>) {
        for (key, value) in table {
            let place = (name.to_owned(), key.get_ref().to_string());
            self.places.insert(place, SettingSource::Span(span_of(key, value)));
        }
    }

    /// Records that a setting was given by a variable, or by a flag.
    pub fn given_by(&mut self, table: &str, setting: &str, name: &str) {
        self.places.insert((table.to_owned(), setting.to_owned()), SettingSource::Variable(name.to_owned()));
    }

    /// Reads a value.
    pub fn read<T: Deserialize<'i>>(&mut self, mut value: Spanned<DeValue<'i>>) -> Option<T> {
        if let DeValue::Table(table) = value.get_mut() {
            *table = self.spelled(std::mem::take(table), '_', '-');
        }
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(read) => Some(read),
            Err(error) => {
                self.note(&error);
                None
            }
        }
    }

    /// Reads a table of settings, each of which the environment may override.
    pub fn group<T: DeserializeOwned + Default>(&mut self, name: &str) -> T {
        let (span, mut table) = match self.take(name) {
            Some((_, value)) => match (value.span(), value.into_inner()) {
                (span, DeValue::Table(table)) => (span, self.spelled(table, '_', '-')),
                (span, other) => {
                    // Reading it reports the mistake.
                    return self.read(Spanned::new(span, other)).unwrap_or_default();
                }
            },
            None => (0..0, DeTable::new()),
        };
        self.note_places(name, &table);
        self.rename_others(name, &mut table);
        self.override_with::<T>(name, &mut table);
        self.read(Spanned::new(span, DeValue::Table(table))).unwrap_or_default()
    }

    /// Reads the settings outside of tables.
    pub fn general<T: DeserializeOwned + Default>(&mut self) -> T {
        let mut table = DeTable::new();
        for name in fields::<T>() {
            let Some((key, value)) = self.take(name) else { continue };
            self.places
                .insert((String::new(), (*name).to_owned()), SettingSource::Span(span_of(&key, &value)));
            table.insert(key, value);
        }
        self.override_with::<T>("", &mut table);
        self.read(Spanned::new(0..0, DeValue::Table(table))).unwrap_or_default()
    }

    /// Whether the file or the environment has a setting of this group.
    pub fn has<T: DeserializeOwned>(&self, name: &str) -> bool {
        let named = |setting: &&'static str| self.environment.get(&variable(name, setting)).is_some();
        self.root.contains_key(name) || fields::<T>().iter().any(named)
    }

    /// Normalises the spelling of names: `batch_size` is `batch-size`. A name in both spellings
    /// with different values is a mistake.
    pub fn spelled(&mut self, table: DeTable<'i>, from: char, to: char) -> DeTable<'i> {
        let mut spelled = DeTable::new();
        // Normalised names first, so that a mistake is reported at the other spelling.
        let (right, other): (Vec<_>, Vec<_>) =
            table.into_iter().partition(|(key, _)| !key.get_ref().contains(from));
        spelled.extend(right);
        for (key, value) in other {
            let name = key.get_ref().replace(from, &to.to_string());
            self.insert_other(&mut spelled, &key, name, value);
        }
        spelled
    }

    /// Moves settings that are given by an alternative name to their own name.
    pub fn rename_others(&mut self, group: &str, table: &mut DeTable<'i>) {
        for other in OtherName::all_of(group) {
            let entry =
                if other.is_at_the_top() { self.take(other.name) } else { table.remove_entry(other.name) };
            let Some((key, value)) = entry else { continue };
            match other.convert(value) {
                Ok(value) => {
                    if self.insert_other(table, &key, other.setting.to_owned(), value.clone()) {
                        let place = (group.to_owned(), other.setting.to_owned());
                        self.places.insert(place, SettingSource::Span(value.span()));
                    }
                }
                Err((span, reason)) => self.wrong(&span, reason),
            }
        }
    }

    /// Inserts a setting that has an alternative name in the text, unless it exists already.
    /// Returns whether it was inserted.
    pub fn insert_other(
        &mut self,
        table: &mut DeTable<'i>,
        key: &Spanned<DeString<'i>>,
        name: String,
        value: Spanned<DeValue<'i>>,
    ) -> bool {
        if let Some(given) = table.get(name.as_str()) {
            if !is_same(given, &value) {
                let other = key.get_ref();
                let reason =
                    format!("`{other}` is another name of `{name}`, which has another value: give one");
                self.wrong(&key.span(), reason);
            }
            return false;
        }
        table.insert(Spanned::new(key.span(), Cow::Owned(name)), value);
        true
    }

    /// Overrides settings by environment variables.
    fn override_with<T: DeserializeOwned>(&mut self, group: &str, table: &mut DeTable<'i>) {
        for setting in fields::<T>() {
            let Some((name, value)) = self.variable_of::<T>(group, setting) else { continue };
            self.given_by(group, setting, &name);
            table.insert(Spanned::new(0..0, Cow::Borrowed(*setting)), value);
        }
    }

    /// Value of a setting in the environment, by its own name or an alternative one. Mistakes are
    /// reported.
    fn variable_of<T: DeserializeOwned>(
        &mut self,
        group: &str,
        setting: &'static str,
    ) -> Option<(String, Spanned<DeValue<'i>>)> {
        let mut found: Option<(String, Spanned<DeValue<'i>>)> = None;
        let others = OtherName::all_of(group).filter(|other| other.setting == setting);
        let names = std::iter::once((variable(group, setting), None))
            .chain(others.map(|other| (variable(other.group, other.name), Some(other))));
        for (name, other) in names {
            let text = match self.environment.get(&name) {
                None => continue,
                Some(Variable::Text(text)) => text,
                Some(Variable::NotUnicode) => {
                    self.mistakes.push(Mistake::of_variable(&name, "its value is not UTF-8"));
                    continue;
                }
            };
            match value_of::<T>(setting, text, other) {
                Err(reason) => self.mistakes.push(Mistake::of_variable(&name, reason)),
                Ok(value) => match &found {
                    Some((first, given)) if !is_same(given, &value) => {
                        let reason = format!("another name of {first}, which has another value: set one");
                        self.mistakes.push(Mistake::of_variable(&name, reason));
                    }
                    Some(_) => {}
                    None => found = Some((name, value)),
                },
            }
        }
        found
    }

    /// The top-level names that were not taken.
    pub fn rest(&mut self) -> Vec<(String, Range<usize>)> {
        let rest = std::mem::take(&mut self.root);
        rest.into_iter().map(|(key, _)| (key.get_ref().to_string(), key.span())).collect()
    }

    /// All mistakes and warnings, in the order of the text.
    pub fn into_mistakes(self) -> (Vec<Mistake>, Vec<Mistake>) {
        (sorted(self.mistakes), sorted(self.warnings))
    }
}

fn sorted(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
    mistakes.sort();
    mistakes.dedup();
    mistakes
}

fn span_of(key: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>) -> Range<usize> {
    match value.get_ref() {
        DeValue::Table(_) => key.span(),
        _ => value.span(),
    }
}

/// A value without its locations.
pub fn plain(value: &Spanned<DeValue<'_>>) -> Option<toml::Value> {
    toml::Value::deserialize(ValueDeserializer::from(value.clone())).ok()
}

/// Whether two values are equal: `5000ms` is `5s`.
fn is_same(one: &Spanned<DeValue<'_>>, other: &Spanned<DeValue<'_>>) -> bool {
    match (plain(one), plain(other)) {
        (Some(toml::Value::String(one)), Some(toml::Value::String(other))) => {
            let ages = (one.parse::<super::Age>(), other.parse::<super::Age>());
            one == other || matches!(ages, (Ok(one), Ok(other)) if one == other)
        }
        (one, other) => one.is_some() && one == other,
    }
}

/// `OUTBOX_POLLER_BATCH_SIZE` for `batch-size` of `poller`.
pub fn variable(group: &str, setting: &str) -> String {
    let group = if group.is_empty() { String::new() } else { format!("{group}_") };
    format!("OUTBOX_{group}{setting}").replace('-', "_").to_uppercase()
}

/// The value of a variable as the group accepts it: a number or a boolean if the setting is one,
/// otherwise the text unchanged.
fn value_of<'i, T: DeserializeOwned>(
    setting: &'static str,
    written: &'i str,
    other: Option<&OtherName>,
) -> Result<Spanned<DeValue<'i>>, String> {
    let text = DeValue::String(Cow::Owned(written.replace('$', "$$")));
    let mut refused = None;
    for value in scalar(written).into_iter().chain([text]) {
        let value = Spanned::new(0..0, value);
        let value = match other {
            Some(other) => other.convert(value).map_err(|(_, reason)| reason),
            None => Ok(value),
        };
        let fits = value.and_then(|value| fits::<T>(setting, &value).map(|()| value));
        match fits {
            Ok(value) => return Ok(value),
            Err(reason) => drop(refused.get_or_insert(reason)),
        }
    }
    Err(refused.unwrap_or_default())
}

/// A boolean or a number.
fn scalar(written: &str) -> Option<DeValue<'_>> {
    let value = DeValue::parse(written).ok()?.into_inner();
    matches!(value, DeValue::Boolean(_) | DeValue::Integer(_) | DeValue::Float(_)).then_some(value)
}

/// Whether a group accepts this value for a setting. Checks the setting alone, so that a mistake
/// belongs to the variable.
fn fits<T: DeserializeOwned>(setting: &'static str, value: &Spanned<DeValue<'_>>) -> Result<(), String> {
    let mut alone = DeTable::new();
    alone.insert(Spanned::new(0..0, Cow::Borrowed(setting)), value.clone());
    match T::deserialize(ValueDeserializer::from(Spanned::new(0..0, DeValue::Table(alone)))) {
        Ok(_) => Ok(()),
        Err(error) if error.message().starts_with("missing field") => Ok(()),
        Err(error) => Err(reword(error.message())),
    }
}
