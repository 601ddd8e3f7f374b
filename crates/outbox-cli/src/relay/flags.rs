//! Flags of a relay without a settings file.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::builder::PossibleValue;
use outbox::settings::Mode;
use outbox_transports::Text;

use crate::Usage;
use crate::config::{Config, Count, Time, Topic, Transport, WrittenCompletion, WrittenMode};

/// Flags that replace a settings file.
#[derive(clap::Args)]
pub(crate) struct Flags {
    /// The database: sqlite:FILE, postgres://… or mysql://… (also for MariaDB), or @FILE that
    /// contains such a URL
    // The value may contain a password: hidden in the help.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL", value_parser = outbox::settings::file::url_or_file)]
    pub(crate) database: Option<String>,

    /// The table of the events; the names of the other tables are derived from it. Default:
    /// outbox_event
    #[arg(long, value_name = "NAME")]
    table: Option<String>,

    /// The schema (PostgreSQL) or database (MySQL) of the tables, instead of the connection's own
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,

    /// Destination of events: stdout, or file:PATH to append to a file
    #[arg(long, value_name = "WHERE")]
    publish: Option<PublishTarget>,

    /// Also publish the event log, or only the log with --mode log, as a topic of this name, under
    /// which its position is stored
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,

    /// How relays share this database. Default: multi-node
    #[arg(long, value_enum, ignore_case = true)]
    mode: Option<ModeFlag>,

    /// Create or upgrade the tables first; without this they must exist
    #[arg(long)]
    migrate: bool,

    /// Number of concurrent workers
    #[arg(long, value_name = "N")]
    workers: Option<Count>,

    /// Initial number of events per poll, and number of events per batch of the log
    #[arg(long, value_name = "N")]
    batch: Option<Count>,

    /// Maximum time between two polls, such as 500ms, 5s or 1m
    #[arg(long, value_name = "TIME")]
    poll_interval: Option<Time<1>>,

    /// Duration of a lease on an event, such as 30s or 5m: the maximum delay of events in flight
    /// after a crash
    #[arg(long, value_name = "TIME")]
    lease: Option<Time<1_000>>,

    /// Whether to keep or delete rows of DONE events. Default: keep
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

    /// Accepts underscores as an alias, like the file; `ignore_case` accepts upper case.
    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (alias, help) = match self.0 {
            Mode::SingleNode => {
                ("single_node", "One active relay, by a lease on the whole table; others stand by")
            }
            Mode::MultiNode => ("multi_node", "Any number of relays share the work"),
            Mode::Ordered => {
                ("ordered", "As multi-node; events without an ordering key are ordered by their aggregate")
            }
            Mode::WriterOnly => ("writer_only", "Delivers nothing; deletes old events"),
            _ => ("log", "Only the event log; another relay delivers the queue"),
        };
        Some(PossibleValue::new(WrittenMode(self.0).name()).alias(alias).help(help))
    }
}

/// `--completion`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum CompletionFlag {
    /// Rows stay until they are purged
    Keep,
    /// Rows are deleted at once
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

/// Value of `--publish`.
#[derive(Clone)]
enum PublishTarget {
    Stdout,
    File(PathBuf),
}

impl FromStr for PublishTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "stdout" => Ok(PublishTarget::Stdout),
            Some(("file", path)) if !path.is_empty() => Ok(PublishTarget::File(path.into())),
            _ => Err("use stdout, or file:PATH".to_owned()),
        }
    }
}

impl PublishTarget {
    /// The transport. Fails at once if a file is not writable.
    fn transport(&self) -> Result<Transport, Usage> {
        match self {
            PublishTarget::Stdout => Ok(Transport::Stdout),
            PublishTarget::File(path) => {
                let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
                let wrong = |error| Usage(format!("--publish: cannot write to {}: {error}", path.display()));
                file.map_err(wrong).map(|_| Transport::file(path))
            }
        }
    }
}

/// Name of the publisher. Positions of the log are stored under this name.
const PUBLISHER_NAME: &str = "lines";

impl Flags {
    /// Fails if a flag is given beside a settings file.
    pub(crate) fn reject_beside_file(&self) -> Result<(), Usage> {
        let given = [
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
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => {
                Err(Usage(format!("{flag} cannot be used with --config: use the setting of the file")))
            }
            None => Ok(()),
        }
    }

    /// Converts the flags to settings.
    pub(crate) fn config(&self) -> Result<Config, Usage> {
        let needs = |what: &str| Usage(format!("{what} is required, or --config with a settings file"));
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
                let reason = "--mode writer-only delivers nothing: remove --publish and --topic";
                return Err(Usage(reason.to_owned()));
            }
            (_, Some(publish), topic) => {
                config.publish_to(PUBLISHER_NAME, publish.transport()?);
                let topic = topic.as_deref().or((mode == Mode::LogOnly).then_some("log"));
                let batch = self.batch.map(Count::at_most);
                config.topics.extend(topic.map(|topic| Topic::all(topic, PUBLISHER_NAME, batch)));
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

    /// the same spellings as in the file.
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
