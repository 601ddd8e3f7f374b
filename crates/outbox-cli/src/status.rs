//! `outbox status`: how an outbox is doing, once or again and again.

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
use crate::age::Age;
use crate::database::Tables;
use crate::log::{PairView, pairs, table, waiting};
use crate::open::Place;
use crate::say_as_is;
use crate::show::{Output, Table, json, number, span_of, status};

/// Show how an outbox is doing: events by status, backlog, relays, publishers of the log
///
/// Events are counted one by one, which takes a while if there are millions. --watch only looks at what is pending.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(flatten)]
    tables: Tables,

    /// Look again and again until Ctrl-C: in place on a terminal, else a line each time
    #[arg(long)]
    watch: bool,

    /// How often --watch looks, such as 500ms or 10s
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

/// Everything at one moment.
#[derive(Serialize)]
struct View {
    at: DateTime<Utc>,
    database: String,
    table: String,
    new: u64,
    retry: u64,
    done: u64,
    dead: u64,
    #[serde(flatten)]
    now: Now,
    pending_types: Vec<TypeCount>,
    dead_types: Vec<TypeCount>,
}

/// What is cheap to ask.
#[derive(Serialize)]
struct Now {
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
    pairs: Vec<PairView>,
}

#[derive(Serialize)]
struct TypeCount {
    event_type: String,
    count: u64,
}

/// How many types are listed.
const TYPES: usize = 5;

/// How many pending events are looked at to find those that no running relay routes.
const LOOK_AT: usize = 10_000;

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    if options.watch {
        return watch::run(&place, options.every.0, options.output).await;
    }
    let view = look(&place).await?;
    if options.output.json {
        json(&view)?;
    } else {
        say_as_is(page(&view, options.output));
    }
    Ok(ExitCode::SUCCESS)
}

async fn now(place: &Place) -> Result<Now> {
    let explain = |error| place.explain(error);
    let Backlog { pending, free, oldest_due } = place.store.backlog().await.map_err(explain)?;
    let leader = place.store.leader(EXCLUSIVE).await.map_err(explain)?;
    let relays = place.store.nodes().await.map_err(explain)?.into_iter().map(RelayView::from).collect();
    let unrouted = place.store.unrouted(LOOK_AT).await.map_err(explain)?;
    let (head, pairs) = pairs(place).await?;
    let oldest_due_ms = oldest_due.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let log = LogView { head: head.get(), pairs };
    Ok(Now { pending, free, oldest_due_ms, leader, relays, unrouted, log })
}

async fn look(place: &Place) -> Result<View> {
    let explain = |error| place.explain(error);
    let Stats { new, retry, done, dead, .. } = place.store.stats().await.map_err(explain)?;
    let types = async |filter: Filter| -> Result<Vec<TypeCount>> {
        let types = place.store.types(&filter, TYPES).await.map_err(explain)?;
        Ok(types.into_iter().map(|(event_type, count)| TypeCount { event_type, count }).collect())
    };
    Ok(View {
        at: Utc::now().trunc_subsecs(3),
        database: place.url.to_string(),
        table: place.table.clone(),
        new,
        retry,
        done,
        dead,
        now: now(place).await?,
        pending_types: types(Filter { pending: true, ..Filter::default() }).await?,
        dead_types: types(Filter { status: Some(Status::Dead), ..Filter::default() }).await?,
    })
}

fn page(view: &View, output: Output) -> String {
    let mut events = Table::new(["EVENTS", "#COUNT", ""]);
    let now = &view.now;
    let due = match now.oldest_due_ms {
        None => "nothing is due".to_owned(),
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
    let look = if view.dead > 0 { types(&view.dead_types) } else { String::new() };
    for (name, count, note) in [
        ("NEW", view.new, String::new()),
        ("RETRY", view.retry, String::new()),
        ("pending", now.pending, due),
        ("", 0, types(&view.pending_types)),
        ("DONE", view.done, String::new()),
        ("DEAD", view.dead, look),
    ] {
        match (name, note.as_str()) {
            ("", "") => {}
            ("", note) => events.row(["".into(), "".into(), note.into()]),
            (name, note) => events.row([status(name), number(count).into(), note.into()]),
        }
    }
    format!("{}, table {}\n\n{}\n\n{}", view.database, view.table, events.lines(), rest(now, output))
}

/// Who leads, which relays run, and the log.
fn rest(now: &Now, output: Output) -> String {
    let leader = match &now.leader {
        Some(leader) => format!("Leader   {} leads the table alone (single_node)\n\n", Escaped(leader)),
        None => String::new(),
    };
    let relays = relays::lines(&now.relays, output);
    let log = match (&now.log.pairs[..], now.log.head) {
        ([], 0) => "Log      empty".to_owned(),
        ([], head) => format!("Log      ends at position {head}; nobody publishes it"),
        (pairs, head) => {
            let waiting: String = waiting(pairs, output).iter().map(|line| format!("\n\n{line}")).collect();
            format!("Log      ends at position {head}\n\n{}{waiting}", table(pairs, output).lines())
        }
    };
    let unrouted = unrouted(&now.unrouted);
    format!("{leader}{relays}{unrouted}\n\n{log}")
}

/// A sentence on pending events that no running relay routes, if there are any.
fn unrouted(found: &UnroutedEvents) -> String {
    if found.types.is_empty() {
        return String::new();
    }
    let each = found.types.iter().take(TYPES).map(|of| {
        let aggregate = match of.aggregate_type.as_str() {
            "__GLOBAL__" => String::new(),
            aggregate => format!(" of {}", Escaped(aggregate)),
        };
        format!("{}{aggregate} {}", Escaped(&of.event_type), number(of.count))
    });
    let each = each.collect::<Vec<_>>().join(", ");
    let others = if found.types.len() > TYPES { ", …" } else { "" };
    let least = if found.more { "at least " } else { "" };
    let (count, events) = (number(found.count()), if found.count() == 1 { "event" } else { "events" });
    format!("\n\nNo running relay routes {least}{count} pending {events}: {each}{others}.")
}
