//! `outbox relay`: delivers events from a database to standard output or a file, one JSON object a line.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use clap::ValueEnum;
use outbox::store::SharedStore;
use outbox::{Completion, Error, Outgoing, PublishError, Publisher, RelayBuilder, Topic, open_store};
use outbox_transports::{Lines, Sink, open_to_append};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::Usage;
use crate::database::{DatabaseUrl, Tables};

/// Deliver events, each as one JSON object on a line
///
/// Runs until it is told to stop by SIGTERM or Ctrl-C; then it finishes what it has in hand. Its own log lines go to
/// standard error.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(flatten)]
    tables: Tables,

    /// Where events go: stdout, or file:PATH, which is appended to
    #[arg(long, value_name = "WHERE")]
    publish: Where,

    /// Publish the event log too, or alone with --mode log, as a topic of this name; its position is kept by it
    #[arg(long, value_name = "NAME", default_value_if("mode", "log", "log"))]
    topic: Option<String>,

    /// Who else may deliver from this database
    #[arg(long, value_enum, default_value_t = Mode::MultiNode)]
    mode: Mode,

    /// Create or upgrade the tables first; without this they must be there
    #[arg(long)]
    migrate: bool,

    /// How many events to handle at once
    #[arg(long, value_name = "N")]
    workers: Option<usize>,

    /// How many events a poll takes at first, and a batch of the log has
    #[arg(long, value_name = "N")]
    batch: Option<usize>,

    /// The longest time between two polls, such as 500ms, 5s or 1m
    #[arg(long, value_name = "TIME")]
    poll_interval: Option<Time>,

    /// How long an event is leased, such as 30s or 5m: how long a crash delays what this relay had in hand
    #[arg(long, value_name = "TIME")]
    lease: Option<Time>,

    /// What happens to events that are done
    #[arg(long, value_enum, default_value_t = Done::Keep)]
    completion: Done,
}

const EXAMPLES: &str = "\
Examples:
  outbox relay --database postgres://ada:secret@db/shop --publish stdout | my-consumer
  outbox relay --database sqlite:shop.db --migrate --publish file:events.jsonl --completion delete
  outbox relay --database mysql://root@127.0.0.1/shop --publish stdout --mode log --topic audit

A line is out before its event counts as delivered, so after a crash some may come twice: tell them apart by `id`.";

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// This relay alone, by a lease on the whole table; another one stands by
    SingleNode,
    /// Any number of relays share the work
    MultiNode,
    /// As multi-node; events of one key or aggregate one after another
    Ordered,
    /// The event log alone; the queue is somebody else's
    Log,
}

#[derive(Clone, Copy, ValueEnum)]
enum Done {
    /// They stay until they are purged
    Keep,
    /// Their rows are deleted
    Delete,
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

/// A time as people write it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time(Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: Option<u64> = number.parse().ok();
        let seconds = |each: u64| number.and_then(|n| n.checked_mul(each)).map(Duration::from_secs);
        let time = match unit {
            "ms" => number.map(Duration::from_millis),
            "s" => seconds(1),
            "m" => seconds(60),
            "h" => seconds(3_600),
            _ => None,
        };
        time.map(Time)
            .ok_or_else(|| "write a whole number and its unit, as in 500ms, 5s, 1m or 2h".to_owned())
    }
}

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let (_, tables) = options.tables.options(4)?;
    let database = DatabaseUrl::parse(&options.tables.database)?;
    let explain = |error| database.explain_outbox(error);
    // From the first moment on: what is told to stop while it starts stops as well.
    let mut signals = Signals::new()?;
    database.probe().await?;
    let publisher = Arc::new(options.publish.open().await?);
    let store = open_store(database.secret(), &tables).await.map_err(explain)?;
    if options.migrate {
        store.migrate().await.map_err(explain)?;
    }
    let relay = match options.builder(store, &publisher).start().await {
        Err(Error::Setting(what)) => return Err(Usage(what).into()),
        started => started.map_err(explain)?,
    };
    let gone = tokio::select! {
        () = signals.next() => false,
        () = publisher.gone.told.notified() => true,
    };
    let stopped = tokio::select! {
        stopped = relay.stop() => stopped,
        // Whoever says it twice does not want to wait.
        () = signals.next() => std::process::exit(130),
    };
    if gone {
        let lines = options.publish.name();
        bail!("cannot write to {lines} any more; what was not written stays in the database");
    }
    stopped.context("could not give back what was in hand: others wait for its lease")?;
    Ok(ExitCode::SUCCESS)
}

/// SIGTERM and Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let to_hear = |kind| signal(kind).context("cannot wait for SIGTERM and Ctrl-C");
        Ok(Self {
            terminate: to_hear(SignalKind::terminate())?,
            interrupt: to_hear(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl Options {
    fn builder(&self, store: SharedStore, publisher: &Arc<Careful>) -> RelayBuilder {
        let mut relay = match self.mode {
            Mode::SingleNode => RelayBuilder::single_node(store),
            Mode::MultiNode => RelayBuilder::multi_node(store),
            Mode::Ordered => RelayBuilder::ordered(store),
            Mode::Log => RelayBuilder::log_only(store),
        };
        if let Some(topic) = &self.topic {
            let mut pair = Topic::new(topic).to(publisher.clone());
            if let Some(batch) = self.batch {
                pair = pair.batch(batch);
            }
            if let Some(Time(interval)) = self.poll_interval {
                pair = pair.every(interval);
            }
            relay = relay.publish(pair);
        }
        if let Some(workers) = self.workers {
            relay = relay.workers(workers);
        }
        if let Some(batch) = self.batch {
            relay = relay.batch(batch);
        }
        if let Some(Time(interval)) = self.poll_interval {
            relay = relay.poll_interval(interval);
        }
        if let Some(Time(lease)) = self.lease {
            relay = relay.lease(lease);
        }
        let completion = match self.completion {
            Done::Keep => Completion::Keep,
            Done::Delete => Completion::Delete,
        };
        relay.completion(completion).forward_any(publisher.clone())
    }
}

impl Where {
    fn name(&self) -> String {
        match self {
            Where::Stdout => "standard output".to_owned(),
            Where::File(path) => path.display().to_string(),
        }
    }

    async fn open(&self) -> Result<Careful> {
        let gone = Arc::new(Gone::default());
        let inner: Box<dyn Publisher> = match self {
            Where::Stdout => Box::new(Lines::to(Watched(tokio::io::stdout(), gone.clone()))),
            Where::File(path) => {
                let file = open_to_append(path).await;
                let file = file.with_context(|| format!("cannot write to {}", self.name()))?;
                Box::new(Lines::to(Watched(file, gone.clone())))
            }
        };
        Ok(Careful { inner, gone })
    }
}

/// Whether lines can still be written.
#[derive(Default)]
struct Gone {
    is_so: AtomicBool,
    told: Notify,
}

/// Notes when lines cannot be written any more.
struct Watched<S>(S, Arc<Gone>);

#[async_trait]
impl<S: Sink> Sink for Watched<S> {
    async fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        let put = self.0.put(lines).await;
        if put.is_err() {
            self.1.is_so.store(true, Ordering::Relaxed);
            self.1.told.notify_one();
        }
        put
    }
}

/// Is not healthy once lines cannot be written: that is not the fault of any event, and must not use up its attempts.
struct Careful {
    inner: Box<dyn Publisher>,
    gone: Arc<Gone>,
}

#[async_trait]
impl Publisher for Careful {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.inner.publish_batch(events).await
    }

    async fn is_healthy(&self) -> bool {
        !self.gone.is_so.load(Ordering::Relaxed) && self.inner.is_healthy().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_numbers_with_a_unit() {
        for (text, ms) in [("500ms", 500), ("5s", 5_000), ("1m", 60_000), ("2h", 7_200_000), ("0s", 0)] {
            assert_eq!(text.parse(), Ok(Time(Duration::from_millis(ms))), "{text}");
        }
        for text in
            ["", "5", "s", "-1s", "1.5s", "5 s", "5d", "99999999999999999999s", "18446744073709551615h"]
        {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }
}
