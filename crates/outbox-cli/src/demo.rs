//! `outbox demo`: a small shop that writes events, simulates failures, and verifies deliveries.
//!
//! | module | contents |
//! | --- | --- |
//! | `shop` | the application: its events, its handlers, its business transaction |
//! | `dashboard_traffic` | more events, for the dashboard |
//! | `dashboard` | the server of the dashboard |
//! | `ledger` | compares written and delivered events |
//! | `latency` | histogram of latencies |
//! | `display`, `summary` | output during the demo, and at its end |

mod dashboard;
mod dashboard_traffic;
mod display;
mod latency;
mod ledger;
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
use self::dashboard_traffic::DashboardTraffic;
use self::display::Display;
use self::ledger::Ledger;
use self::shop::{Quota, RateLimiter, Shop, Writer};
use self::summary::Summary;
use crate::database::DatabaseUrl;
use crate::print_escaped;

/// Demonstrate an outbox: writes, rollbacks, failures, retries, order, dead letters
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Stop when this many committed events are delivered or dead, instead of on Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    events: Option<u64>,

    /// Events to write per second; 0 for as many as possible
    #[arg(long, value_name = "R", default_value_t = 500)]
    rate: u32,

    /// Database for the demo, which creates its own tables and drops them at the end
    ///
    /// sqlite:FILE, postgres://… or mysql://… (also for MariaDB). Without it, an embedded SQLite
    /// database in a temporary folder.
    #[arg(long, value_name = "URL")]
    database: Option<String>,

    /// Percentage of attempts at orders and receipts that fail
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..=100))]
    fail: u8,

    /// Address of the dashboard, instead of 127.0.0.1:8080 or any port if that is in use
    ///
    /// With --events there is no dashboard unless this is given.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_dashboard")]
    listen: Option<SocketAddr>,

    /// No dashboard, and no events for it
    #[arg(long)]
    no_dashboard: bool,

    /// First drop the tables that a killed demo has left in --database
    #[arg(long, requires = "database")]
    fresh: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox demo                                   until Ctrl-C, on a temporary database, with the dashboard
  outbox demo --events 10000 --rate 0           as fast as possible
  outbox demo --events 1000 --fail 50           half of the attempts fail
  outbox demo --database postgres://ada@db/test --events 5000
  outbox demo --log error                       with the relay's log lines about failed handlers

The exit code is 1 if an event was lost, or was delivered out of order, too early, or from a
transaction that was rolled back.";

impl DemoArgs {
    fn has_dashboard(&self) -> bool {
        !self.no_dashboard && (self.events.is_none() || self.listen.is_some())
    }
}

/// Number of concurrent writers of orders, and of customers of each writer.
const WRITERS: u64 = 4;
const CUSTOMERS: u64 = 25;

/// Time without any delivery after which the demo fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the demo. `live`: nothing else writes to the terminal, so that a live display can be drawn.
pub(crate) async fn run(options: &DemoArgs, live: bool) -> Result<ExitCode> {
    let builder = OutboxBuilder::new().table(shop::EVENTS);
    let Some(url) = &options.database else {
        let folder = tempfile::Builder::new().prefix("outbox-demo-").tempdir().context(
            "cannot create a temporary folder: set TMPDIR to one that you may write to, or use --database",
        )?;
        introduce(options, &format!("SQLite in {}, removed at the end", folder.path().display()));
        let file = folder.path().join("demo.db");
        let file =
            file.to_str().context("the temporary folder's name is not UTF-8: set TMPDIR to another")?;
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

fn introduce(options: &DemoArgs, database: &str) {
    print_escaped(format_args!(
        "A shop with an outbox: each order is a row and its events, in one transaction;\n\
         a relay in this process delivers the events. Some transactions roll back,\n\
         {} % of the attempts at orders and receipts fail, a few payloads are invalid.\n\
         Database: {database}\n",
        options.fail
    ));
}

/// Creates the tables, plays the demo, drops the tables even after a failure, and prints the
/// summary.
async fn show<DB: Shop>(outbox: &Outbox<DB>, options: &DemoArgs, live: bool) -> Result<ExitCode> {
    if options.fresh {
        shop::close(outbox).await.context("cannot drop the tables of an earlier demo")?;
    }
    let interrupts = Interrupts::listen()?;
    shop::open(outbox).await.map_err(|error| {
        if error.to_string().contains("already exists") {
            anyhow!(
                "the table {} exists already: another demo runs on this database, or one was killed\n\
                 hint: if none runs, add --fresh to drop its tables",
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
    print_escaped(format_args!("\n{summary}"));
    let violations = summary.violations();
    if violations.is_empty() && !summary.aborted {
        print_escaped(
            "All committed events were delivered in order or dead-lettered, and no others were delivered.",
        );
    } else if !violations.is_empty() {
        print_escaped(format_args!("FAILED: {}. Please report this.", violations.join(", ")));
    }
    print_escaped(
        "Next: README.md shows the few lines of code that you need, docs/guide/ explains each part.",
    );
    cleaned?;
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the relay and the writers until all events are settled, or the user stops the demo.
async fn play<DB: Shop>(
    outbox: &Outbox<DB>,
    options: &DemoArgs,
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
        print_escaped(format_args!("Dashboard: {}\n", open.link));
        dashboard = Some(open);
        let traffic = DashboardTraffic::default();
        relay = traffic.add_to(relay);
        if options.fail <= shop::MAX_FAILURES_TO_HOLD {
            relay = relay.on_dead(OnDead::Hold);
        }
        writers.spawn(traffic.run(outbox.clone(), stop.clone()));
    }
    let relay = relay.start().await.context("cannot start the relay")?;

    let began = Instant::now();
    let quota = Arc::new(Quota::new(options.events));
    let rate_limiter = Arc::new(RateLimiter::new(options.rate));
    for i in 0..WRITERS {
        let writer = Writer {
            outbox: outbox.clone(),
            ledger: ledger.clone(),
            quota: quota.clone(),
            rate_limiter: rate_limiter.clone(),
            stop: stop.clone(),
            customers: i * CUSTOMERS..(i + 1) * CUSTOMERS,
        };
        writers.spawn(writer.run());
    }

    let mut display = Display::new(options.events, live);
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let mut failed = None;
    let mut aborted = false;
    loop {
        tokio::select! {
            biased;
            () = interrupts.next() => {
                if stop.is_cancelled() {
                    aborted = true;
                    break;
                }
                stop.cancel();
                display.stopping();
            }
            Some(ended) = writers.join_next() => {
                if let Err(error) = ended.context("a writer panicked")? {
                    stop.cancel();
                    let error = anyhow!(error).context("the shop cannot write: check the database");
                    failed.get_or_insert(error);
                }
            }
            _ = tick.tick() => {}
        }
        let totals = ledger.totals();
        if display.show(&totals).is_err() {
            // Standard output is closed.
            stop.cancel();
        }
        let waiting = totals.in_flight() > 0;
        let stuck = waiting && ledger.last_settled().unwrap_or(began).elapsed() > STALL_TIMEOUT;
        if stuck || (writers.is_empty() && (!waiting || failed.is_some())) {
            break;
        }
    }
    display.end();
    drop(dashboard);
    stop.cancel();
    // Each writer finishes its current transaction: if aborted, it could not know whether that was
    // committed.
    let _ = tokio::time::timeout(STALL_TIMEOUT, writers.join_all()).await;
    let stopped = relay.stop().await.context("the relay did not stop cleanly");
    if let Some(error) = failed {
        return Err(error);
    }
    stopped?;
    let (hot, all) = ledger.take_latencies();
    Ok(Summary {
        totals: ledger.totals(),
        stored: shop::stored_counts(outbox).await?,
        orders: shop::count_orders(outbox).await?,
        took: ledger.last_settled().unwrap_or(began) - began,
        hot,
        all,
        aborted,
    })
}

/// Listener for Ctrl-C and SIGTERM.
struct Interrupts {
    #[cfg(unix)]
    int: tokio::signal::unix::Signal,
    #[cfg(unix)]
    term: tokio::signal::unix::Signal,
}

impl Interrupts {
    /// From here on Ctrl-C no longer ends the process.
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
