//! `outbox nodes`: relays that run or have vanished, what they hold, and releasing it.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use comfy_table::Cell;
use outbox::escape::Escaped;
use outbox::store::{EXCLUSIVE, Node, NodeId, PageAsk, Released};
use serde::Serialize;

use crate::database::Tables;
use crate::open::Place;
use crate::show::{Output, Table, counted, dash, json, number, short, span_of, status};
use crate::{Usage, note, nothing, say};

/// List relays and what they hold; release the leases of a relay
///
/// Without a subcommand it lists. A relay announces itself every few seconds; one that stops says so, and one that was not seen
/// for its presence (20 s unless told otherwise) has vanished: other relays release its leases.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Option<Action>,

    // `None` if a subcommand has them.
    #[command(flatten)]
    tables: Option<Tables>,

    #[command(flatten)]
    output: Output,
}

const EXAMPLES: &str = "\
Examples:
  outbox nodes                                      relays, and how many events each holds
  outbox nodes release relay-1                      frees what it holds, if it has vanished
  outbox nodes release relay-1 --yes                the same if it still runs

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.";

#[derive(Subcommand)]
enum Action {
    List(List),
    Release(Release),
}

/// List relays that were seen in the last day, the one that was seen last first
#[derive(Args)]
struct List {
    #[command(flatten)]
    tables: Tables,

    #[command(flatten)]
    output: Output,
}

/// Free everything that a relay holds: its leases on events, and the leadership of the table
///
/// Those events are delivered by other relays at once. A relay that still runs can settle none of them any more, but goes on
/// handling the events in its memory until its next renewal: they may be delivered twice, and out of the order of their keys.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox nodes release relay-1
  outbox nodes release relay-1 --yes

Exit codes: 0 released, or would be, 1 failure, 2 wrong usage, 3 no such relay, or it holds nothing.")]
struct Release {
    /// The relay's name
    #[arg(value_name = "NODE")]
    node: String,

    #[command(flatten)]
    tables: Tables,

    /// Release it even though it runs. Without this, only say so
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    match (options.action, options.tables) {
        (Some(Action::Release(options)), _) => release(options).await,
        (Some(Action::List(List { tables, output })), _) => list(&tables, output).await,
        (None, Some(tables)) => list(&tables, options.output).await,
        (None, None) => Err(Usage("--database (or DATABASE_URL) is missing".to_owned()).into()),
    }
}

/// A relay for programs.
#[derive(Serialize)]
struct View {
    node: String,
    state: &'static str,
    mode: String,
    version: String,
    started_at: DateTime<Utc>,
    seen_ms: u64,
    /// Of the first thousand that are pending.
    held_events: u64,
    leads_table: bool,
    released: bool,
}

/// How many of the pending events are looked at to count those that are held: they are the oldest as a rule.
const LOOK_AT: usize = 1_000;

/// What nodes hold.
struct Holdings {
    events: BTreeMap<String, u64>,
    leader: Option<NodeId>,
}

impl Holdings {
    async fn of(place: &Place) -> Result<Self> {
        let ask = PageAsk { limit: LOOK_AT, look_at: LOOK_AT, ..PageAsk::default() };
        let page = place.store.page(&ask).await.map_err(|error| place.explain(error))?;
        let mut events = BTreeMap::new();
        for (holder, _) in page.rows.into_iter().filter_map(|row| row.lease) {
            *events.entry(holder.to_string()).or_insert(0) += 1;
        }
        let leader = place.store.leader(EXCLUSIVE).await.map_err(|error| place.explain(error))?;
        Ok(Self { events, leader })
    }

    /// A leader's name is the node's, and its life.
    fn is_leader(&self, node: &str) -> bool {
        let rest = self.leader.as_ref().and_then(|leader| leader.as_str().strip_prefix(node));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }
}

fn state(node: &Node) -> &'static str {
    match (node.is_running(), node.state.active) {
        (true, true) => "ACTIVE",
        (true, false) => "STANDBY",
        // It would have said so, had it been stopped.
        (false, _) => "VANISHED",
    }
}

async fn list(tables: &Tables, output: Output) -> Result<ExitCode> {
    let place = tables.open().await?;
    let nodes = place.store.nodes().await.map_err(|error| place.explain(error))?;
    let holdings = Holdings::of(&place).await?;
    let views: Vec<View> = nodes
        .iter()
        .map(|node| View {
            node: node.node.to_string(),
            state: state(node),
            mode: node.state.mode.clone(),
            version: node.state.version.clone(),
            started_at: node.started_at,
            seen_ms: u64::try_from(node.seen.as_millis()).unwrap_or(u64::MAX),
            held_events: holdings.events.get(node.node.as_str()).copied().unwrap_or_default(),
            leads_table: holdings.is_leader(node.node.as_str()),
            released: node.state.released,
        })
        .collect();
    if output.json {
        views.iter().try_for_each(json)?;
    } else if !views.is_empty() {
        let mut table = Table::new(["NODE", "STATE", "MODE", "STARTED", "SEEN", "#HELD EVENTS", "LEADS"]);
        for view in &views {
            table.row([
                Cell::new(short(&view.node, 48)),
                status(view.state),
                Cell::new(short(&view.mode, 20)),
                Cell::new(output.time(view.started_at)),
                Cell::new(format!("{} ago", span_of(std::time::Duration::from_millis(view.seen_ms)))),
                Cell::new(if view.released { "released".to_owned() } else { number(view.held_events) }),
                Cell::new(if view.leads_table { "the table".to_owned() } else { dash() }),
            ]);
        }
        table.print();
    }
    if views.is_empty() {
        note(format_args!("No relay was seen in the last day at {}, table {}.", place.url, place.table));
        return Ok(nothing());
    }
    Ok(ExitCode::SUCCESS)
}

async fn release(options: Release) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let node = NodeId::from(options.node.trim());
    let explain = |error| place.explain(error);
    let nodes = place.store.nodes().await.map_err(explain)?;
    let known = nodes.iter().find(|seen| seen.node == node);
    if let Some(running) = known.filter(|node| node.is_running() && !options.yes) {
        let held = Holdings::of(&place).await?;
        let events = held.events.get(node.as_str()).copied().unwrap_or_default();
        say(format_args!(
            "{} runs: it was seen {} ago, and holds {}{}.",
            Escaped(&node),
            span_of(running.seen),
            counted(events, "event"),
            if held.is_leader(node.as_str()) { " and leads the table" } else { "" }
        ));
        say(
            "It goes on handling the events in its memory until its next renewal: if they are released now, they may be \
             delivered twice, and out of the order of their keys.",
        );
        say("\nNothing was changed. To release them, add --yes");
        return Ok(ExitCode::SUCCESS);
    }
    let details = known.map(|node| serde_json::json!({"running": node.is_running()}));
    let audit = place.begin_audit("node.release", node.as_str(), details).await?;
    let released = place.store.release_node(&node).await;
    match &released {
        Ok(released) => audit.finish("done", Some(released.events + u64::from(released.leadership))).await,
        Err(error) => audit.finish(&format!("failed: {error}"), None).await,
    }
    let Released { events, leadership, .. } = released.map_err(explain)?;
    if events == 0 && !leadership {
        note(format_args!(
            "{} holds nothing in {}, table {}{}.",
            Escaped(&node),
            place.url,
            place.table,
            if known.is_none() { ", and no relay of this name was seen" } else { "" }
        ));
        return Ok(nothing());
    }
    let table = if leadership { " and the leadership of the table" } else { "" };
    say(format_args!("Released {}{table} of {}.", counted(events, "event"), Escaped(&node)));
    Ok(ExitCode::SUCCESS)
}
