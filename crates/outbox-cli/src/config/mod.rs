//! The settings file of the relay.
//!
//! The parser and the settings that an embedded outbox has as well are the library's
//! (`outbox::settings::file`); here are the settings that the daemon alone has.
//!
//! | file | what it has |
//! | --- | --- |
//! | `sources`, `http`, `transports`, `routes`, `topics` | the settings of the daemon |
//! | `pattern` | patterns of routes |
//! | `check`, `summary` | settings that have to fit together, and their summary |
//!
//! A new setting is a field of its group, a line in `outbox.sample.toml` (a test insists), and a
//! line in the guide.

mod check;
mod http;
mod pattern;
mod routes;
mod sources;
mod summary;
mod topics;
mod transports;

use std::collections::BTreeMap;
use std::path::Path;

pub(crate) use outbox::settings::file::{
    Count, Database, Environment, Groups, Mistake, Reader, Retry, Time, WrittenCompletion, WrittenMode,
};
use outbox::settings::file::{no_such, plain, reword, top};
use outbox::settings::{SettingsError, read_file};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

pub(crate) use self::http::{Http, probes_refusal};
pub(crate) use self::routes::Route;
pub(crate) use self::sources::{Choice, Fleet, Kind, Named, Source};
pub(crate) use self::topics::Topic;
pub(crate) use self::transports::{Publisher, Transport};

use self::transports::TRANSPORTS;

/// The file with everything in it, and what it means.
pub(crate) const SAMPLE: &str = include_str!("../../outbox.sample.toml");

/// What a settings file says.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) groups: Groups,
    pub(crate) http: Http,
    pub(crate) fleet: Fleet,
    pub(crate) source: Source,
    pub(crate) publishers: BTreeMap<String, Publisher>,
    pub(crate) routes: Vec<Route>,
    pub(crate) topics: Vec<Topic>,
    /// What is odd, but does no harm.
    pub(crate) warnings: Vec<Mistake>,
    /// As it was written, by the names at the top.
    written: BTreeMap<String, toml::Value>,
}

impl Config {
    /// Reads a file. `otherwise` is the database if the file names none.
    pub(crate) fn open(file: &Path, otherwise: Option<&str>) -> Result<Self, SettingsError> {
        let (name, text) = read_file(file)?;
        Self::parse(&text, &Environment::of_process(), otherwise)
            .map_err(|found| SettingsError::new(name, found))
    }

    /// Reads a text, with these variables of the environment.
    pub(crate) fn parse(
        text: &str,
        environment: &Environment,
        otherwise: Option<&str>,
    ) -> Result<Self, Vec<Mistake>> {
        let mut reader = Reader::new(text, environment);
        // Of a text that is not TOML nothing else can be said.
        if !reader.is_sound() {
            return Err(reader.into_mistakes().0);
        }
        let groups = Groups::read(&mut reader);
        let http = reader.group("http");
        let fleet = reader.group("fleet");
        let source = source(&mut reader, otherwise);
        let publishers = publishers(&mut reader);
        let routes = several(&mut reader, "routes");
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

    /// Settings without a file: one database, and no publisher yet.
    pub(crate) fn of(database: &str) -> Self {
        let url = Some(Spanned::new(0..0, database.into()));
        Self {
            groups: Groups::default(),
            http: Http::default(),
            fleet: Fleet::default(),
            source: Source::One(Database { url, ..Database::default() }),
            publishers: BTreeMap::new(),
            routes: Vec::new(),
            topics: Vec::new(),
            warnings: Vec::new(),
            written: BTreeMap::new(),
        }
    }

    /// Sends all events to a publisher.
    pub(crate) fn publish_to(&mut self, publisher: &str, transport: Transport) {
        let entry = Publisher { transport, kind: "lines", written: toml::Value::Boolean(true) };
        self.publishers.insert(publisher.to_owned(), entry);
        self.routes.push(Route::all(publisher));
    }

    /// What differs from this and cannot change while a relay runs: names of the settings at the top.
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

/// An array of tables. One that is wrong does not keep the others from being read.
fn several<'i, T: serde::Deserialize<'i>>(reader: &mut Reader<'i>, name: &str) -> Vec<T> {
    let Some((key, value)) = reader.take(name) else { return Vec::new() };
    match value.into_inner() {
        DeValue::Array(items) => items.into_iter().filter_map(|item| reader.read(item)).collect(),
        _ => {
            reader.wrong(&key.span(), format!("write each in a table of its own, under `[[{name}]]`"));
            Vec::new()
        }
    }
}

/// Where events come from: said in one way, or not at all.
fn source(reader: &mut Reader<'_>, otherwise: Option<&str>) -> Option<Source> {
    let before = reader.mistakes.len();
    let one = reader.has::<Database>("database").then(|| reader.group::<Database>("database"));
    // One that could not be read is not one that is not there.
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
            format!("databases are given twice: leave out {first} (or OUTBOX_DATABASE_URL) or this"),
        );
        return None;
    }
    if let Some((_, value)) = query {
        return reader.read(value).map(Source::Discovered);
    }
    if let Some((key, value)) = many {
        let DeValue::Array(items) = value.into_inner() else {
            reader.wrong(&key.span(), "write each in a table of its own, under `[[databases]]`");
            return None;
        };
        let count = items.len();
        let named: Vec<Named> = items.into_iter().filter_map(|item| reader.read(item)).collect();
        return (named.len() == count).then_some(Source::Several(named));
    }
    if is_wrong {
        return None;
    }
    let mut database = one.unwrap_or_default();
    if database.url.is_none() {
        reader.given_by("database", "url", crate::database::FLAG);
        database.url = otherwise.map(|url| Spanned::new(0..0, url.into()));
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
        reader.wrong(&key.span(), "write each in a table of its own, such as `[publishers.orders.nats]`");
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
            let reason = format!("name its one transport, as in `[publishers.{name}.nats]`");
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
            let transport = match Transport::read(known, ValueDeserializer::from(settings)) {
                Ok(transport) => transport,
                Err(error) => {
                    let span = error.span().unwrap_or_default();
                    reader.wrong(&span, reword(error.message()));
                    return None;
                }
            };
            // What does not fit together shows when one is made; it connects to nothing yet.
            if let Transport::Broker(broker) = &transport
                && let Err(reason) = broker.open(name)
            {
                reader.wrong(&kind.span(), reason);
                return None;
            }
            Some(Publisher { transport, kind: known, written })
        }
    }
}

#[cfg(test)]
mod any_text;
#[cfg(test)]
mod tests;
