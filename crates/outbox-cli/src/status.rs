//! `outbox status`: shows the state of an outbox, once or repeatedly.

mod relays;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, SubsecRound as _, Utc};
use outbox::NodeId;
use outbox::escape::Escaped;
use outbox::store::{Backlog, EXCLUSIVE, Filter, Stats, Status, UnroutedEvents};
use serde::Serialize;

use self::relays::RelayView;
use crate::database::Tables;
use crate::log::{SubscriptionView, subscriptions, table, waiting_lines};
use crate::output::{Output, Table, json, number, span_of, status};
use crate::print_raw;
use crate::target::Target;
use crate::time_args::Age;

/// Show the state of an outbox: events by status, backlog, relays, publishers of the log
///
/// Counts all events, which takes a while if there are millions. --watch reads pending events only.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    tables: Tables,

    /// Repeat until Ctrl-C: redraws on a terminal, else prints a line each time
    #[arg(long)]
    watch: bool,

    /// Interval of --watch, such as 500ms or 10s
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "watch")]
    every: Age,

    #[command(flatten)]
    output: Output,
}

const EXAMPLES: &str = "\
Examples:
  outbox status
  outbox status --watch
  outbox status --json | jq .dead
  outbox status --watch --every 10s --json >> backlog.jsonl

Exit codes: 0 done, 1 failure, 2 wrong usage.";

/// Full state of an outbox; also its JSON form.
#[derive(Serialize)]
struct StatusView {
    at: DateTime<Utc>,
    database: String,
    table: String,
    new: u64,
    retry: u64,
    done: u64,
    dead: u64,
    #[serde(flatten)]
    now: CurrentState,
    pending_types: Vec<TypeCount>,
    dead_types: Vec<TypeCount>,
}

/// The part of the state that is cheap to query.
#[derive(Serialize)]
struct CurrentState {
    pending: u64,
    free: u64,
    oldest_due_ms: Option<u64>,
    leader: Option<NodeId>,
    relays: Vec<RelayView>,
    unrouted: UnroutedEvents,
    log: LogView,
}

#[derive(Serialize)]
struct LogView {
    head: i64,
    subscriptions: Vec<SubscriptionView>,
}

#[derive(Serialize)]
struct TypeCount {
    event_type: String,
    count: u64,
}

/// Maximum number of event types that are listed.
const MAX_TYPES: usize = 5;

/// Number of pending events that are scanned for those that no running relay routes.
const SCAN_LIMIT: usize = 10_000;

pub(crate) async fn run(options: StatusArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    if options.watch {
        return watch::run(&target, options.every.0, options.output).await;
    }
    let view = read_status(&target).await?;
    if options.output.json {
        json(&view)?;
    } else {
        print_raw(page(&view, options.output));
    }
    Ok(ExitCode::SUCCESS)
}

async fn now(target: &Target) -> Result<CurrentState> {
    let explain = |error| target.explain(error);
    let Backlog { pending, free, oldest_due } = target.store.backlog().await.map_err(explain)?;
    let leader = target.store.leader(EXCLUSIVE).await.map_err(explain)?;
    let relays = target.store.nodes().await.map_err(explain)?.into_iter().map(RelayView::from).collect();
    let unrouted = target.store.unrouted(SCAN_LIMIT).await.map_err(explain)?;
    let (head, subscriptions) = subscriptions(target).await?;
    let oldest_due_ms = oldest_due.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let log = LogView { head: head.get(), subscriptions };
    Ok(CurrentState { pending, free, oldest_due_ms, leader, relays, unrouted, log })
}

async fn read_status(target: &Target) -> Result<StatusView> {
    let explain = |error| target.explain(error);
    let Stats { new, retry, done, dead, .. } = target.store.stats().await.map_err(explain)?;
    let types = async |filter: Filter| -> Result<Vec<TypeCount>> {
        let types = target.store.types(&filter, MAX_TYPES).await.map_err(explain)?;
        Ok(types.into_iter().map(|(event_type, count)| TypeCount { event_type, count }).collect())
    };
    Ok(StatusView {
        at: Utc::now().trunc_subsecs(3),
        database: target.url.to_string(),
        table: target.table.clone(),
        new,
        retry,
        done,
        dead,
        now: now(target).await?,
        pending_types: types(Filter { pending: true, ..Filter::default() }).await?,
        dead_types: types(Filter { status: Some(Status::Dead), ..Filter::default() }).await?,
    })
}

fn page(view: &StatusView, output: Output) -> String {
    let mut events = Table::new(["EVENTS", "#COUNT", ""]);
    let now = &view.now;
    let due = match now.oldest_due_ms {
        None => "none due".to_owned(),
        Some(ms) => format!(
            "{} due and free; the oldest has waited {}",
            number(now.free),
            span_of(std::time::Duration::from_millis(ms))
        ),
    };
    let types = |types: &[TypeCount]| {
        let each = types.iter().map(|of| format!("{} {}", of.event_type, number(of.count)));
        let each = each.collect::<Vec<_>>();
        if each.is_empty() { String::new() } else { format!("by type: {}", each.join(", ")) }
    };
    let dead_types = if view.dead > 0 { types(&view.dead_types) } else { String::new() };
    for (name, count, note) in [
        ("NEW", view.new, String::new()),
        ("RETRY", view.retry, String::new()),
        ("pending", now.pending, due),
        ("", 0, types(&view.pending_types)),
        ("DONE", view.done, String::new()),
        ("DEAD", view.dead, dead_types),
    ] {
        match (name, note.as_str()) {
            ("", "") => {}
            ("", note) => events.row(["".into(), "".into(), note.into()]),
            (name, note) => events.row([status(name), number(count).into(), note.into()]),
        }
    }
    format!("{}, table {}\n\n{}\n\n{}", view.database, view.table, events.lines(), footer(now, output))
}

/// Text about the leader, the relays and the log.
fn footer(now: &CurrentState, output: Output) -> String {
    let leader = match &now.leader {
        Some(leader) => format!("Leader   {} leads the table (single_node)\n\n", Escaped(leader)),
        None => String::new(),
    };
    let relays = relays::lines(&now.relays, output);
    let log = match (&now.log.subscriptions[..], now.log.head) {
        ([], 0) => "Log      empty".to_owned(),
        ([], head) => format!("Log      ends at position {head}; no publisher"),
        (subscriptions, head) => {
            let waiting: String =
                waiting_lines(subscriptions, output).iter().map(|line| format!("\n\n{line}")).collect();
            format!("Log      ends at position {head}\n\n{}{waiting}", table(subscriptions, output).lines())
        }
    };
    let unrouted = unrouted(&now.unrouted);
    format!("{leader}{relays}{unrouted}\n\n{log}")
}

/// Sentence about pending events that no running relay routes, if there are any.
fn unrouted(found: &UnroutedEvents) -> String {
    if found.types.is_empty() {
        return String::new();
    }
    let each = found.types.iter().take(MAX_TYPES).map(|of| {
        let aggregate = match of.aggregate_type.as_str() {
            "__GLOBAL__" => String::new(),
            aggregate => format!(" of {}", Escaped(aggregate)),
        };
        format!("{}{aggregate} {}", Escaped(&of.event_type), number(of.count))
    });
    let each = each.collect::<Vec<_>>().join(", ");
    let others = if found.types.len() > MAX_TYPES { ", …" } else { "" };
    let least = if found.more { "at least " } else { "" };
    let (count, events) = (number(found.count()), if found.count() == 1 { "event" } else { "events" });
    format!("\n\nNo running relay routes {least}{count} pending {events}: {each}{others}.")
}
