//! A relay without a settings file: a database, and where its events go.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use outbox_transports::Text;

use crate::Usage;
use crate::config::{Config, Count, Done, Mode, Time, Transport};

/// What the flags say.
#[derive(clap::Args)]
pub(crate) struct Flags {
    /// The database: sqlite:FILE, postgres://… or mysql://… (also for MariaDB), or @FILE that has such a URL in it
    // The value may hold a password: never shown in the help.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL", value_parser = crate::database::argument)]
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
    #[arg(long, value_enum)]
    mode: Option<Mode>,

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
    completion: Option<Done>,
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
        let publish = self.publish.as_ref().ok_or_else(|| needs("--publish"))?;
        crate::database::DatabaseUrl::parse(database)?;
        let transport = match publish {
            Where::Stdout => Transport::Stdout,
            Where::File(path) => {
                // Here and now, where somebody reads it.
                let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
                file.map_err(|error| {
                    Usage(format!("--publish: cannot write to {}: {error}", path.display()))
                })?;
                Transport::file(path)
            }
        };
        let mode = self.mode.unwrap_or_default();
        let topic = self.topic.as_deref().or((mode == Mode::Log).then_some("log"));
        let mut config = Config::of(database, LINES, transport);
        if let crate::config::Source::One(database) = &mut config.source {
            database.table = self.table.as_deref().map(Text::from);
            database.schema = self.schema.as_deref().map(Text::from);
        }
        if mode == Mode::Log {
            config.routes.clear();
        }
        if let Some(topic) = topic {
            config.topics.push(crate::config::Topic::all(topic, LINES, self.batch));
        }
        let groups = &mut config.groups;
        groups.general.mode = Some(mode);
        groups.general.migrate = Some(self.migrate);
        groups.general.completion = self.completion;
        groups.dispatcher.workers = self.workers;
        groups.poller.batch_size = self.batch;
        groups.poller.interval = self.poll_interval;
        groups.claim_locking.lease = self.lease;
        Ok(config)
    }
}
