//! The settings file of the relay.
//!
//! | file | what it is |
//! | --- | --- |
//! | `reader`, `mistake`, `fields` | reading it piece by piece, the environment's word, and what is wrong where |
//! | `groups`, `http`, `sources`, `transports`, `routes`, `topics` | what stands in it |
//! | `time`, `count`, `pattern` | what values look like |
//! | `check`, `summary` | what has to fit together, and what it comes to |
//!
//! A new setting is a field of its group, a line in `outbox.sample.toml` (a test insists), and one in the guide.

mod check;
mod count;
mod fields;
mod groups;
mod http;
mod mistake;
mod pattern;
mod reader;
mod routes;
mod sources;
mod summary;
mod time;
mod topics;
mod transports;

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

pub(crate) use self::count::Count;
pub(crate) use self::groups::{Done, Groups, Mode, Retry};
pub(crate) use self::http::{Http, probes_refusal};
pub(crate) use self::mistake::{Mistake, Mistakes};
pub(crate) use self::routes::Route;
pub(crate) use self::sources::{Choice, Database, Fleet, Kind, Named, Source};
pub(crate) use self::time::Time;
pub(crate) use self::topics::Topic;
pub(crate) use self::transports::{Publisher, Transport};

use self::mistake::no_such;
use self::reader::{Reader, spelled};
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
    pub(crate) fn open(file: &Path, otherwise: Option<&str>) -> Result<Self, Mistakes> {
        let name = file.display().to_string();
        let wrong = |reason| Mistakes { file: name.clone(), found: vec![Mistake::of_file(reason)] };
        let text =
            std::fs::read_to_string(file).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self::parse(&text, &environment, otherwise).map_err(|found| Mistakes { file: name, found })
    }

    /// Reads a text, with these variables of the environment.
    pub(crate) fn parse(
        text: &str,
        environment: &BTreeMap<String, String>,
        otherwise: Option<&str>,
    ) -> Result<Self, Vec<Mistake>> {
        let mut reader = Reader::new(text, environment);
        // Of what is not TOML nothing else can be said.
        if !reader.is_sound() {
            return Err(reader.mistakes);
        }
        let groups = Groups {
            general: reader.general(),
            dispatcher: reader.group("dispatcher"),
            poller: reader.group("poller"),
            claim_locking: reader.group("claim-locking"),
            retry: reader.group("retry"),
            purge: reader.group("purge"),
            log: reader.group("log"),
            metrics: reader.group("metrics"),
        };
        let http = reader.group("http");
        let fleet = reader.group("fleet");
        let source = source(&mut reader, otherwise);
        let publishers = publishers(&mut reader);
        let routes = several(&mut reader, "routes");
        let topics = several(&mut reader, "topics");
        for (name, span) in reader.rest() {
            reader.wrong(&span, no_such("setting", &name, TOP));
        }
        let Some(source) = source else { return Err(sorted(reader.mistakes)) };
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
        if reader.mistakes.is_empty() {
            Ok(Self { warnings: sorted(reader.warnings), ..config })
        } else {
            Err(sorted(reader.mistakes))
        }
    }

    /// Settings without a file: all events of one database to one publisher.
    pub(crate) fn of(database: &str, publisher: &str, transport: Transport) -> Self {
        let url = Some(Spanned::new(0..0, database.into()));
        let entry = Publisher { transport, kind: "lines", written: toml::Value::Boolean(true) };
        Self {
            groups: Groups::default(),
            http: Http::default(),
            fleet: Fleet::default(),
            source: Source::One(Database { url, ..Database::default() }),
            publishers: BTreeMap::from([(publisher.to_owned(), entry)]),
            routes: vec![Route::all(publisher)],
            topics: Vec::new(),
            warnings: Vec::new(),
            written: BTreeMap::new(),
        }
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

/// What may stand at the top.
const TOP: &[&str] = &[
    "mode",
    "migrate",
    "completion",
    "on-dead",
    "unrouted",
    "database",
    "databases",
    "discovery",
    "fleet",
    "dispatcher",
    "poller",
    "claim-locking",
    "retry",
    "purge",
    "log",
    "metrics",
    "http",
    "publishers",
    "routes",
    "topics",
];

fn sorted(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
    mistakes.sort();
    mistakes.dedup();
    mistakes
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

fn publisher(reader: &mut Reader<'_>, name: &str, transports: DeTable<'_>) -> Option<Publisher> {
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
                *table = spelled(std::mem::take(table), '-', '_');
                if let Some(DeValue::Table(tls)) = table.get_mut("tls").map(Spanned::get_mut) {
                    *tls = spelled(std::mem::take(tls), '-', '_');
                }
            }
            let written = toml_value(&settings)?;
            let transport = match Transport::read(known, ValueDeserializer::from(settings)) {
                Ok(transport) => transport,
                Err(error) => {
                    let span = error.span().unwrap_or_default();
                    reader.wrong(&span, mistake::reword(error.message()));
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

fn toml_value(value: &Spanned<DeValue<'_>>) -> Option<toml::Value> {
    serde::Deserialize::deserialize(ValueDeserializer::from(value.clone())).ok()
}

#[cfg(test)]
mod any_text;
#[cfg(test)]
mod tests;
