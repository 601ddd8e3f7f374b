//! `outbox demo`: a small shop that writes events, loses its temper now and then, and checks what arrives.
//!
//! | room | what happens there |
//! | --- | --- |
//! | `shop` | the application: its events, its handlers, its business transaction |
//! | `scenes` | what else there is to see on the dashboard |
//! | `dashboard` | serving it |
//! | `ledger` | what was written and what arrived, compared |
//! | `latency` | how long it took |
//! | `display`, `summary` | what is seen while it runs, and at the end |

mod dashboard;
mod display;
mod latency;
mod ledger;
mod scenes;
mod shop;
mod summary;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use outbox::{DatabaseKind, OnDead, Outbox, OutboxBuilder};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::dashboard::Dashboard;
use self::display::Display;
use self::ledger::Ledger;
use self::scenes::Scenes;
use self::shop::{Pace, Quota, Shop, Writer};
use self::summary::Summary;
use crate::database::DatabaseUrl;
use crate::say;

/// Watch an outbox at work: writes, rollbacks, failures, retries, order, dead letters
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Stop when this many committed events are delivered or dead, instead of at Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    events: Option<u64>,

    /// How many events to write a second; 0 for as many as the database takes
    #[arg(long, value_name = "R", default_value_t = 500)]
    rate: u32,

    /// A database of yours to run on, in tables of its own that are dropped at the end
    ///
    /// sqlite:FILE, postgres://… or mysql://… (also for MariaDB). Without it, an embedded SQLite database in a
    /// temporary folder.
    #[arg(long, value_name = "URL")]
    database: Option<String>,

    /// How many percent of the attempts at orders and receipts fail
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..=100))]
    fail: u8,

    /// Where to serve the dashboard, instead of 127.0.0.1:8080 or any port if that is taken
    ///
    /// With --events there is none unless this is given.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_dashboard")]
    listen: Option<SocketAddr>,

    /// No dashboard, and none of the traffic that is there for it
    #[arg(long)]
    no_dashboard: bool,

    /// First drop what a demo that was killed has left in --database
    #[arg(long, requires = "database")]
    fresh: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox demo                                   until Ctrl-C, on a database of its own, with the dashboard
  outbox demo --events 10000 --rate 0           as fast as it goes
  outbox demo --events 1000 --fail 50           every second attempt fails
  outbox demo --database postgres://ada@db/test --events 5000
  outbox demo --log error                       with what the relay logs about failing handlers

The exit code is 1 if an event was lost, or came out of order, too early, or out of a
transaction that was rolled back.";

impl Options {
    fn has_dashboard(&self) -> bool {
        !self.no_dashboard && (self.events.is_none() || self.listen.is_some())
    }
}

/// How many writers place orders at once, and for how many customers each.
const WRITERS: u64 = 4;
const CUSTOMERS: u64 = 25;

/// If nothing at all arrives for this long, something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// `live`: nothing else writes to the terminal, so a display may be drawn there.
pub(crate) async fn run(options: &Options, live: bool) -> Result<ExitCode> {
    let builder = OutboxBuilder::new().table(shop::EVENTS);
    let Some(url) = &options.database else {
        let folder = tempfile::Builder::new().prefix("outbox-demo-").tempdir().context(
            "cannot create a temporary folder: set TMPDIR to one that you may write to, or use --database",
        )?;
        introduce(options, &format!("SQLite in {}, removed at the end", folder.path().display()));
        let file = folder.path().join("demo.db");
        let file = file.to_str().context("the temporary folder's name is no UTF-8: set TMPDIR to another")?;
        let outbox = builder.sqlite(file).await.context("cannot create the demo's database")?;
        return show(&outbox, options, live).await;
    };
    let database = DatabaseUrl::parse(url)?;
    introduce(
        options,
        &format!("{database}\n          tables {}* and {}, dropped at the end", shop::EVENTS, shop::ORDERS),
    );
    database.probe().await?;
    let explain = |error| database.explain_outbox(error);
    match database.kind() {
        DatabaseKind::Postgres => {
            show(&builder.postgres(database.secret()).await.map_err(explain)?, options, live).await
        }
        DatabaseKind::MySql => {
            show(&builder.mysql(database.secret()).await.map_err(explain)?, options, live).await
        }
        _ => show(&builder.sqlite(database.secret()).await.map_err(explain)?, options, live).await,
    }
}

fn introduce(options: &Options, database: &str) {
    say(format_args!(
        "A shop with an outbox: each order is a row and its events, in one transaction;\n\
         a relay in this process delivers the events. Some transactions roll back,\n\
         {} % of the attempts at orders and receipts fail, a few events can never be read.\n\
         Database: {database}\n",
        options.fail
    ));
}

/// Makes the tables, plays, drops the tables whatever happened, and tells.
async fn show<DB: Shop>(outbox: &Outbox<DB>, options: &Options, live: bool) -> Result<ExitCode> {
    if options.fresh {
        shop::close(outbox).await.context("cannot drop what an earlier demo has left")?;
    }
    let interrupts = Interrupts::listen()?;
    shop::open(outbox).await.map_err(|error| {
        if error.to_string().contains("already exists") {
            anyhow!(
                "the table {} is there already: another demo runs on this database, or one was killed\n\
                 hint: if none runs, add --fresh to drop what is left of it",
                shop::ORDERS
            )
        } else {
            anyhow!(
                "cannot create the table {}: {error}\nhint: the user needs the right to create tables",
                shop::ORDERS
            )
        }
    })?;
    let played = play(outbox, options, live, interrupts).await;
    let cleaned =
        shop::close(outbox).await.context("cannot drop the demo's tables: the next run needs --fresh");
    outbox.close().await;
    let summary = played?;
    say(format_args!("\n{summary}"));
    let broken = summary.broken();
    if broken.is_empty() && !summary.hurried {
        say("What was committed was delivered or set aside as dead, in order, and nothing else.");
    } else if !broken.is_empty() {
        say(format_args!("FAILED: {}. Please report this.", broken.join(", ")));
    }
    say("Next: README.md shows the few lines it takes in your code, docs/guide/ explains each part.");
    cleaned?;
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the relay and the writers until the events are through, or the user has seen enough.
async fn play<DB: Shop>(
    outbox: &Outbox<DB>,
    options: &Options,
    live: bool,
    mut interrupts: Interrupts,
) -> Result<Summary> {
    outbox.migrate().await.context("cannot create the outbox's tables")?;
    let ledger = Arc::new(Ledger::default());
    let stop = CancellationToken::new();
    let mut writers = JoinSet::new();
    let mut relay = shop::relay(outbox, &ledger, options.fail);
    let mut dashboard = None;
    if options.has_dashboard() {
        let open = Dashboard::open(outbox.store(), options.listen).await?;
        say(format_args!("Dashboard: {}\n", open.link));
        dashboard = Some(open);
        let scenes = Scenes::default();
        relay = scenes.add_to(relay);
        if options.fail <= shop::MOST_FAILURES_TO_HOLD {
            relay = relay.on_dead(OnDead::Hold);
        }
        writers.spawn(scenes.run(outbox.clone(), stop.clone()));
    }
    let relay = relay.start().await.context("cannot start the relay")?;

    let began = Instant::now();
    let quota = Arc::new(Quota::new(options.events));
    let pace = Arc::new(Pace::new(options.rate));
    for i in 0..WRITERS {
        let writer = Writer {
            outbox: outbox.clone(),
            ledger: ledger.clone(),
            quota: quota.clone(),
            pace: pace.clone(),
            stop: stop.clone(),
            customers: i * CUSTOMERS..(i + 1) * CUSTOMERS,
        };
        writers.spawn(writer.run());
    }

    let mut display = Display::new(options.events, live);
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let mut failed = None;
    let mut hurried = false;
    loop {
        tokio::select! {
            biased;
            () = interrupts.next() => {
                if stop.is_cancelled() {
                    hurried = true;
                    break;
                }
                stop.cancel();
                display.stopping();
            }
            Some(ended) = writers.join_next() => {
                if let Err(error) = ended.context("a writer panicked")? {
                    stop.cancel();
                    let error = anyhow!(error).context("the shop cannot write: is the database still there?");
                    failed.get_or_insert(error);
                }
            }
            _ = tick.tick() => {}
        }
        let tally = ledger.tally();
        if display.show(&tally).is_err() {
            // Nobody is looking any more.
            stop.cancel();
        }
        let waiting = tally.in_flight() > 0;
        let stuck = waiting && ledger.last_settled().unwrap_or(began).elapsed() > PATIENCE;
        if stuck || (writers.is_empty() && (!waiting || failed.is_some())) {
            break;
        }
    }
    display.end();
    drop(dashboard);
    stop.cancel();
    // Each ends with the transaction that it is at. Cut off there, it could not tell whether that was committed.
    let _ = tokio::time::timeout(PATIENCE, writers.join_all()).await;
    let stopped = relay.stop().await.context("the relay did not stop cleanly");
    if let Some(error) = failed {
        return Err(error);
    }
    stopped?;
    let (hot, all) = ledger.take_latencies();
    Ok(Summary {
        tally: ledger.tally(),
        standing: shop::standing(outbox).await?,
        orders: shop::count_orders(outbox).await?,
        took: ledger.last_settled().unwrap_or(began) - began,
        hot,
        all,
        hurried,
    })
}

/// Ctrl-C, and being asked to end by the system.
struct Interrupts {
    #[cfg(unix)]
    int: tokio::signal::unix::Signal,
    #[cfg(unix)]
    term: tokio::signal::unix::Signal,
}

impl Interrupts {
    /// From here on Ctrl-C does not end the process by itself.
    #[cfg(unix)]
    fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { int: signal(SignalKind::interrupt())?, term: signal(SignalKind::terminate())? })
    }

    #[cfg(not(unix))]
    fn listen() -> Result<Self> {
        Ok(Self {})
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
