//! A relay without a settings file: a database, and where its events go.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::builder::PossibleValue;
use outbox::settings::Mode;
use outbox_transports::Text;

use crate::Usage;
use crate::config::{Config, Count, Time, Topic, Transport, WrittenCompletion, WrittenMode};

/// What the flags say.
#[derive(clap::Args)]
pub(crate) struct Flags {
    /// The database: sqlite:FILE, postgres://… or mysql://… (also for MariaDB), or @FILE that has such a URL in it
    // The value may hold a password: never shown in the help.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL", value_parser = outbox::settings::file::url_or_file)]
    pub(crate) database: Option<String>,

    /// The table of the events; the other tables' names are made from it. outbox_event if not set
    #[arg(long, value_name = "NAME")]
    table: Option<String>,

    /// The schema (PostgreSQL) or database (MySQL) of the tables, instead of the connection's own
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,

    /// Where events go: stdout, or file:PATH, which is appended to
    #[arg(long, value_name = "WHERE")]
    publish: Option<Where>,

    /// Publish the event log too, or alone with --mode log, as a topic of this name; its position is kept by it
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,

    /// Who else may deliver from this database; multi-node if not set
    #[arg(long, value_enum, ignore_case = true)]
    mode: Option<ModeFlag>,

    /// Create or upgrade the tables first; without this they must be there
    #[arg(long)]
    migrate: bool,

    /// How many events to handle at once
    #[arg(long, value_name = "N")]
    workers: Option<Count>,

    /// How many events a poll takes at first, and a batch of the log has
    #[arg(long, value_name = "N")]
    batch: Option<Count>,

    /// The longest time between two polls, such as 500ms, 5s or 1m
    #[arg(long, value_name = "TIME")]
    poll_interval: Option<Time<1>>,

    /// How long an event is leased, such as 30s or 5m: how long a crash delays what this relay had in hand, at most
    #[arg(long, value_name = "TIME")]
    lease: Option<Time<1_000>>,

    /// What happens to events that are done; they are kept if not set
    #[arg(long, value_enum)]
    completion: Option<CompletionFlag>,
}

/// `--mode`.
#[derive(Clone, Copy)]
struct ModeFlag(Mode);

impl clap::ValueEnum for ModeFlag {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(Mode::SingleNode),
            Self(Mode::MultiNode),
            Self(Mode::Ordered),
            Self(Mode::WriterOnly),
            Self(Mode::LogOnly),
        ]
    }

    /// With the spelling of the environment, as in the file; `ignore_case` lets capitals through.
    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (alias, help) = match self.0 {
            Mode::SingleNode => {
                ("single_node", "This relay alone, by a lease on the whole table; another one stands by")
            }
            Mode::MultiNode => ("multi_node", "Any number of relays share the work"),
            Mode::Ordered => {
                ("ordered", "As multi-node; events without an ordering key are ordered by their aggregate")
            }
            Mode::WriterOnly => ("writer_only", "Delivers nothing; deletes old events"),
            _ => ("log", "The event log alone; another relay delivers the queue"),
        };
        Some(PossibleValue::new(WrittenMode(self.0).name()).alias(alias).help(help))
    }
}

/// `--completion`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum CompletionFlag {
    /// They stay until they are purged
    Keep,
    /// Their rows are deleted
    Delete,
}

impl From<CompletionFlag> for WrittenCompletion {
    fn from(flag: CompletionFlag) -> Self {
        match flag {
            CompletionFlag::Keep => WrittenCompletion::Keep,
            CompletionFlag::Delete => WrittenCompletion::Delete,
        }
    }
}

/// Where events go.
#[derive(Clone)]
enum Where {
    Stdout,
    File(PathBuf),
}

impl FromStr for Where {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "stdout" => Ok(Where::Stdout),
            Some(("file", path)) if !path.is_empty() => Ok(Where::File(path.into())),
            _ => Err("use stdout, or file:PATH".to_owned()),
        }
    }
}

impl Where {
    /// The transport. A file that cannot be written to is told at the start.
    fn transport(&self) -> Result<Transport, Usage> {
        match self {
            Where::Stdout => Ok(Transport::Stdout),
            Where::File(path) => {
                let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
                let wrong = |error| Usage(format!("--publish: cannot write to {}: {error}", path.display()));
                file.map_err(wrong).map(|_| Transport::file(path))
            }
        }
    }
}

/// What the one publisher is called. Positions of the log are kept by this name.
const LINES: &str = "lines";

impl Flags {
    /// Beside a settings file there is nothing left for them to say.
    pub(crate) fn refuse(&self) -> Result<(), Usage> {
        let said = [
            ("--table", self.table.is_some()),
            ("--schema", self.schema.is_some()),
            ("--publish", self.publish.is_some()),
            ("--topic", self.topic.is_some()),
            ("--mode", self.mode.is_some()),
            ("--migrate", self.migrate),
            ("--workers", self.workers.is_some()),
            ("--batch", self.batch.is_some()),
            ("--poll-interval", self.poll_interval.is_some()),
            ("--lease", self.lease.is_some()),
            ("--completion", self.completion.is_some()),
        ];
        match said.into_iter().find(|(_, said)| *said) {
            Some((flag, _)) => {
                Err(Usage(format!("{flag} is for a relay without --config: say it in the file")))
            }
            None => Ok(()),
        }
    }

    /// The settings that they stand for.
    pub(crate) fn config(&self) -> Result<Config, Usage> {
        let needs = |what: &str| Usage(format!("{what} is needed, or --config with a settings file"));
        let database = self.database.as_deref().ok_or_else(|| needs("--database (or DATABASE_URL)"))?;
        crate::database::DatabaseUrl::parse(database)?;
        let mut config = Config::of(database);
        if let crate::config::Source::One(database) = &mut config.source {
            database.table = self.table.as_deref().map(Text::from);
            database.schema = self.schema.as_deref().map(Text::from);
        }
        let WrittenMode(mode) = self.mode.map(|flag| WrittenMode(flag.0)).unwrap_or_default();
        match (mode, &self.publish, &self.topic) {
            (Mode::WriterOnly, None, None) => {}
            (Mode::WriterOnly, ..) => {
                let reason = "--mode writer-only delivers nothing: leave --publish and --topic out";
                return Err(Usage(reason.to_owned()));
            }
            (_, Some(publish), topic) => {
                config.publish_to(LINES, publish.transport()?);
                let topic = topic.as_deref().or((mode == Mode::LogOnly).then_some("log"));
                let batch = self.batch.map(Count::at_most);
                config.topics.extend(topic.map(|topic| Topic::all(topic, LINES, batch)));
                if mode == Mode::LogOnly {
                    config.routes.clear();
                }
            }
            (_, None, _) => return Err(needs("--publish")),
        }
        let groups = &mut config.groups;
        groups.general.mode = Some(WrittenMode(mode));
        groups.general.migrate = Some(self.migrate);
        groups.general.completion = self.completion.map(Into::into);
        groups.dispatcher.workers = self.workers;
        groups.poller.batch_size = self.batch;
        groups.poller.interval = self.poll_interval;
        groups.claim_locking.lease = self.lease;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use outbox::settings::file::MODES;

    use super::*;

    /// as in the file.
    #[test]
    fn every_mode_is_a_flag_in_both_spellings() {
        let listed: Vec<Mode> = ModeFlag::value_variants().iter().map(|flag| flag.0).collect();
        assert_eq!(listed, MODES.map(|(_, mode)| mode));
        for (name, mode) in MODES {
            for written in [name.to_owned(), name.replace('-', "_"), name.to_uppercase()] {
                assert_eq!(ModeFlag::from_str(&written, true).map(|flag| flag.0), Ok(mode), "{written}");
            }
        }
        assert!(ModeFlag::from_str("multi", true).is_err() && ModeFlag::from_str("", true).is_err());
    }
}
