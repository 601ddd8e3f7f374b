//! The settings file of the relay.
//!
//! The parser, and the settings that an embedded outbox shares, are in the library
//! (`outbox::settings::file`); this module has the settings of the daemon.
//!
//! | module | contents |
//! | --- | --- |
//! | `sources`, `http`, `transports`, `routes`, `topics` | the settings of the daemon |
//! | `pattern` | patterns of routes |
//! | `check`, `summary` | checks across settings, and a summary of all settings |
//!
//! A new setting needs a field of its group, a line in `outbox.sample.toml` (enforced by a test),
//! and a line in the guide.

mod check;
mod http;
mod pattern;
mod routes;
mod sources;
mod summary;
mod topics;
mod transports;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

pub(crate) use outbox::settings::file::{
    Count, DatabaseGroup, Environment, Groups, Mistake, Reader, Retry, Time, WrittenCompletion, WrittenMode,
};
use outbox::settings::file::{no_such, plain, reword, top};
use outbox::settings::{SettingsError, read_file};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

pub(crate) use self::http::{Http, probes_refusal};
pub(crate) use self::routes::Route;
pub(crate) use self::sources::{AllowedKind, Fleet, FleetSelection, NamedDatabase, Source};
pub(crate) use self::topics::Topic;
pub(crate) use self::transports::{Publisher, Transport};

use self::transports::TRANSPORTS;

/// Sample file with all settings and their explanations.
pub(crate) const SAMPLE: &str = include_str!("../../outbox.sample.toml");

/// Parsed settings of a file.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) groups: Groups,
    pub(crate) http: Http,
    pub(crate) fleet: Fleet,
    pub(crate) source: Source,
    pub(crate) publishers: BTreeMap<String, Publisher>,
    pub(crate) routes: Vec<Route>,
    pub(crate) topics: Vec<Topic>,
    /// Suspicious settings that are not mistakes.
    pub(crate) warnings: Vec<Mistake>,
    /// Settings as written, by their top-level names.
    written: BTreeMap<String, toml::Value>,
}

impl Config {
    /// Reads a file. `fallback_url` is used if the file names no database.
    pub(crate) fn open(file: &Path, fallback_url: Option<&str>) -> Result<Self, SettingsError> {
        let (name, text) = read_file(file)?;
        Self::parse(&text, &Environment::of_process(), fallback_url)
            .map_err(|found| SettingsError::new(name, found))
    }

    /// Parses the text of a file, with these environment variables.
    pub(crate) fn parse(
        text: &str,
        environment: &Environment,
        fallback_url: Option<&str>,
    ) -> Result<Self, Vec<Mistake>> {
        let mut reader = Reader::new(text, environment);
        // Without valid TOML nothing else can be checked.
        if !reader.is_sound() {
            return Err(reader.into_mistakes().0);
        }
        let groups = Groups::read(&mut reader);
        let http = reader.group("http");
        let fleet = reader.group("fleet");
        let source = source(&mut reader, fallback_url);
        let publishers = publishers(&mut reader);
        let routes = read_array(&mut reader, "routes");
        let topics = topics::topics(&mut reader);
        for (name, span) in reader.rest() {
            reader.wrong(&span, no_such("setting", &name, &top()));
        }
        let Some(source) = source else { return Err(reader.into_mistakes().0) };
        let config = Self {
            groups,
            http,
            fleet,
            source,
            publishers,
            routes,
            topics,
            warnings: Vec::new(),
            written: std::mem::take(&mut reader.written),
        };
        config.check(&mut reader);
        match reader.into_mistakes() {
            (mistakes, warnings) if mistakes.is_empty() => Ok(Self { warnings, ..config }),
            (mistakes, _) => Err(mistakes),
        }
    }

    /// Creates settings without a file: one database and no publisher.
    pub(crate) fn of(database: &str) -> Self {
        let url = Some(Spanned::new(0..0, database.into()));
        Self {
            groups: Groups::default(),
            http: Http::default(),
            fleet: Fleet::default(),
            source: Source::One(DatabaseGroup { url, ..DatabaseGroup::default() }),
            publishers: BTreeMap::new(),
            routes: Vec::new(),
            topics: Vec::new(),
            warnings: Vec::new(),
            written: BTreeMap::new(),
        }
    }

    /// Adds a publisher, and a route of all events to it.
    pub(crate) fn publish_to(&mut self, publisher: &str, transport: Transport) {
        let entry = Publisher { transport, kind: "lines", written: toml::Value::Boolean(true) };
        self.publishers.insert(publisher.to_owned(), entry);
        self.routes.push(Route::all(publisher));
    }

    /// Top-level names of settings that differ in `new` and cannot change while a relay runs.
    pub(crate) fn fixed_parts_that_differ(&self, new: &Config) -> Vec<String> {
        let names = self.written.keys().chain(new.written.keys());
        let mut differ: Vec<String> = names
            .filter(|name| !matches!(name.as_str(), "routes" | "publishers"))
            .filter(|name| self.written.get(*name) != new.written.get(*name))
            .cloned()
            .collect();
        differ.sort_unstable();
        differ.dedup();
        differ
    }
}

/// Reads an array of tables. A mistake in one table does not prevent reading the others.
fn read_array<'i, T: serde::Deserialize<'i>>(reader: &mut Reader<'i>, name: &str) -> Vec<T> {
    let Some((key, value)) = reader.take(name) else { return Vec::new() };
    match value.into_inner() {
        DeValue::Array(items) => items.into_iter().filter_map(|item| reader.read(item)).collect(),
        _ => {
            reader.wrong(&key.span(), format!("use one `[[{name}]]` table for each"));
            Vec::new()
        }
    }
}

/// Reads the source of events, which may be given in one way only.
fn source(reader: &mut Reader<'_>, fallback_url: Option<&str>) -> Option<Source> {
    let before = reader.mistakes.len();
    let one = reader.has::<DatabaseGroup>("database").then(|| reader.group::<DatabaseGroup>("database"));
    // A table with a mistake must not be reported as missing, too.
    let is_wrong = reader.mistakes.len() > before;
    let many = reader.take("databases");
    let query = reader.take("discovery");
    let second = match (&one, &many, &query) {
        (Some(_), Some((key, _)), _) => Some((key.span(), "`[database]`")),
        (Some(_), _, Some((key, _))) => Some((key.span(), "`[database]`")),
        (None, Some(_), Some((key, _))) => Some((key.span(), "`[[databases]]`")),
        _ => None,
    };
    if let Some((span, first)) = second {
        reader.wrong(
            &span,
            format!("databases are given twice: remove {first} (or OUTBOX_DATABASE_URL) or this"),
        );
        return None;
    }
    if let Some((_, value)) = query {
        return reader.read(value).map(Source::Discovered);
    }
    if let Some((key, value)) = many {
        let DeValue::Array(items) = value.into_inner() else {
            reader.wrong(&key.span(), "use one `[[databases]]` table for each");
            return None;
        };
        let count = items.len();
        let named: Vec<NamedDatabase> = items.into_iter().filter_map(|item| reader.read(item)).collect();
        return (named.len() == count).then_some(Source::Several(named));
    }
    if is_wrong {
        return None;
    }
    let mut database = one.unwrap_or_default();
    if database.url.is_none() {
        reader.given_by("database", "url", crate::database::FLAG);
        database.url = fallback_url.map(|url| Spanned::new(0..0, url.into()));
    }
    if database.url.is_none() {
        let reason = "no database: write `url` under `[database]`, or set DATABASE_URL";
        reader.mistakes.push(Mistake::of_file(reason));
        return None;
    }
    Some(Source::One(database))
}

fn publishers(reader: &mut Reader<'_>) -> BTreeMap<String, Publisher> {
    let mut publishers = BTreeMap::new();
    let Some((key, value)) = reader.take("publishers") else { return publishers };
    let DeValue::Table(table) = value.into_inner() else {
        reader.wrong(&key.span(), "use one table for each, such as `[publishers.orders.nats]`");
        return publishers;
    };
    for (name, value) in table {
        if let DeValue::Table(transports) = value.into_inner()
            && transports.len() == 1
        {
            if let Some(publisher) = publisher(reader, name.get_ref(), transports) {
                publishers.insert(name.into_inner().into_owned(), publisher);
            }
        } else {
            let reason = format!("name exactly one transport, as in `[publishers.{name}.nats]`");
            reader.wrong(&name.span(), reason);
        }
    }
    publishers
}

fn publisher<'i>(reader: &mut Reader<'i>, name: &str, transports: DeTable<'i>) -> Option<Publisher> {
    let (kind, mut settings) = transports.into_iter().next()?;
    match TRANSPORTS.iter().find(|(known, _)| *known == kind.get_ref()) {
        None => {
            let known: Vec<&str> = TRANSPORTS.iter().map(|(known, _)| *known).collect();
            reader.wrong(&kind.span(), no_such("transport", kind.get_ref(), &known));
            None
        }
        Some((known, false)) => {
            let reason =
                format!("this binary was built without `{known}`: build it with `--features {known}`");
            reader.wrong(&kind.span(), reason);
            None
        }
        Some((known, true)) => {
            if let DeValue::Table(table) = settings.get_mut() {
                *table = reader.spelled(std::mem::take(table), '-', '_');
                if let Some(DeValue::Table(tls)) = table.get_mut("tls").map(Spanned::get_mut) {
                    *tls = reader.spelled(std::mem::take(tls), '-', '_');
                }
            }
            let written = plain(&settings)?;
            let places = places(settings.get_ref());
            let transport = match Transport::read(known, ValueDeserializer::from(settings)) {
                Ok(transport) => transport,
                Err(error) => {
                    let span = error.span().unwrap_or_default();
                    reader.wrong(&span, reword(error.message()));
                    return None;
                }
            };
            // Creating the publisher checks its settings as a whole; it does not connect.
            if let Transport::Broker(broker) = &transport
                && let Err(error) = broker.open(name)
            {
                let span = places.get(error.setting()).cloned().unwrap_or_else(|| kind.span());
                reader.wrong(&span, error.to_string());
                return None;
            }
            Some(Publisher { transport, kind: known, written })
        }
    }
}

/// Locations of the settings of a table: the value of each, or its name if it is a table itself.
fn places(settings: &DeValue<'_>) -> BTreeMap<String, Range<usize>> {
    let DeValue::Table(table) = settings else { return BTreeMap::new() };
    let place = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| match value.get_ref() {
        DeValue::Table(_) => name.span(),
        _ => value.span(),
    };
    table.iter().map(|(name, value)| (name.get_ref().to_string(), place((name, value)))).collect()
}

#[cfg(test)]
mod proptests;
#[cfg(test)]
mod tests;
