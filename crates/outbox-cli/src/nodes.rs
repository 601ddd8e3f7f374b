//! `outbox nodes`: lists running and vanished relays with their leases, and releases the leases of
//! a relay.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use comfy_table::Cell;
use outbox::escape::Escaped;
use outbox::store::{EXCLUSIVE, Node, NodeId, PageRequest, Released};
use serde::Serialize;

use crate::database::Tables;
use crate::output::{Output, Table, counted, dash, json, number, short, span_of, status};
use crate::target::Target;
use crate::{Usage, eprint_escaped, exit_nothing, print_escaped};

/// List relays and their leases; release the leases of a relay
///
/// Without a subcommand, lists relays. A relay announces itself every few seconds, and signs off
/// when it stops. A relay that was not seen for its presence time (20 s by default) has vanished:
/// other relays release its leases.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct NodesArgs {
    #[command(subcommand)]
    command: Option<NodesCommand>,

    // `None` if a subcommand is given: it has these arguments itself.
    #[command(flatten)]
    tables: Option<Tables>,

    #[command(flatten)]
    output: Output,
}

const EXAMPLES: &str = "\
Examples:
  outbox nodes                                      relays, and the number of events that each holds
  outbox nodes release relay-1                      release its leases, if it has vanished
  outbox nodes release relay-1 --yes                release its leases even if it runs

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.";

#[derive(Subcommand)]
enum NodesCommand {
    List(NodesListArgs),
    Release(NodesReleaseArgs),
}

/// List relays that were seen in the last day, the most recently seen first
#[derive(Args)]
struct NodesListArgs {
    #[command(flatten)]
    tables: Tables,

    #[command(flatten)]
    output: Output,
}

/// Release everything that a relay holds: its leases on events, and the leadership of the table
///
/// Other relays deliver those events at once. A relay that still runs can no longer settle them,
/// but continues to handle the events in its memory until its next renewal: they may be delivered
/// twice, and out of the order of their keys.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox nodes release relay-1
  outbox nodes release relay-1 --yes

Exit codes: 0 released or to release, 1 failure, 2 wrong usage, 3 no such relay, or it holds nothing.")]
struct NodesReleaseArgs {
    /// The relay's name
    #[arg(value_name = "NODE")]
    node: String,

    #[command(flatten)]
    tables: Tables,

    /// Release even if the relay runs. Without this, only print that it runs
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(options: NodesArgs) -> Result<ExitCode> {
    match (options.command, options.tables) {
        (Some(NodesCommand::Release(options)), _) => release(options).await,
        (Some(NodesCommand::List(NodesListArgs { tables, output })), _) => list(&tables, output).await,
        (None, Some(tables)) => list(&tables, options.output).await,
        (None, None) => Err(Usage("--database (or DATABASE_URL) is missing".to_owned()).into()),
    }
}

/// JSON form of a relay.
#[derive(Serialize)]
struct NodeView {
    node: String,
    state: &'static str,
    mode: String,
    version: String,
    started_at: DateTime<Utc>,
    seen_ms: u64,
    /// Among the first thousand pending events.
    held_events: u64,
    leads_table: bool,
    released: bool,
}

/// Number of pending events that are scanned to count held ones. Held events are usually the
/// oldest.
const SCAN_LIMIT: usize = 1_000;

/// Leases on events per node, and the leader of the table.
struct Holdings {
    events: BTreeMap<String, u64>,
    leader: Option<NodeId>,
}

impl Holdings {
    async fn of(target: &Target) -> Result<Self> {
        let request = PageRequest { limit: SCAN_LIMIT, scan_limit: SCAN_LIMIT, ..PageRequest::default() };
        let page = target.store.page(&request).await.map_err(|error| target.explain(error))?;
        let mut events = BTreeMap::new();
        for (holder, _) in page.rows.into_iter().filter_map(|row| row.lease) {
            *events.entry(holder.to_string()).or_insert(0) += 1;
        }
        let leader = target.store.leader(EXCLUSIVE).await.map_err(|error| target.explain(error))?;
        Ok(Self { events, leader })
    }

    /// The leader's name is the node's name, or the node's name, a colon and the id of its run.
    fn is_leader(&self, node: &str) -> bool {
        let rest = self.leader.as_ref().and_then(|leader| leader.as_str().strip_prefix(node));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }
}

fn state(node: &Node) -> &'static str {
    match (node.is_running(), node.state.active) {
        (true, true) => "ACTIVE",
        (true, false) => "STANDBY",
        // A relay that stops signs off.
        (false, _) => "VANISHED",
    }
}

async fn list(tables: &Tables, output: Output) -> Result<ExitCode> {
    let target = tables.open().await?;
    let nodes = target.store.nodes().await.map_err(|error| target.explain(error))?;
    let holdings = Holdings::of(&target).await?;
    let views: Vec<NodeView> = nodes
        .iter()
        .map(|node| NodeView {
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
        eprint_escaped(format_args!(
            "No relay was seen in the last day at {}, table {}.",
            target.url, target.table
        ));
        return Ok(exit_nothing());
    }
    Ok(ExitCode::SUCCESS)
}

async fn release(options: NodesReleaseArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let node = NodeId::from(options.node.trim());
    let explain = |error| target.explain(error);
    let nodes = target.store.nodes().await.map_err(explain)?;
    let known = nodes.iter().find(|seen| seen.node == node);
    if let Some(running) = known.filter(|node| node.is_running() && !options.yes) {
        let held = Holdings::of(&target).await?;
        let events = held.events.get(node.as_str()).copied().unwrap_or_default();
        print_escaped(format_args!(
            "{} runs: it was seen {} ago and holds {}{}.",
            Escaped(&node),
            span_of(running.seen),
            counted(events, "event"),
            if held.is_leader(node.as_str()) { " and leads the table" } else { "" }
        ));
        print_escaped(
            "It continues to handle the events in its memory until its next renewal: if they are released now, they may be \
             delivered twice, and out of the order of their keys.",
        );
        print_escaped("\nNothing was changed. To release them, add --yes");
        return Ok(ExitCode::SUCCESS);
    }
    let details = known.map(|node| serde_json::json!({"running": node.is_running()}));
    let audit = target.begin_audit("node.release", node.as_str(), details).await?;
    let released = target.store.release_node(&node).await;
    match &released {
        Ok(released) => audit.finish("done", Some(released.events + u64::from(released.leadership))).await,
        Err(error) => audit.finish(&format!("failed: {error}"), None).await,
    }
    let Released { events, leadership, .. } = released.map_err(explain)?;
    if events == 0 && !leadership {
        eprint_escaped(format_args!(
            "{} holds nothing in {}, table {}{}.",
            Escaped(&node),
            target.url,
            target.table,
            if known.is_none() { ", and no relay of this name was seen" } else { "" }
        ));
        return Ok(exit_nothing());
    }
    let table = if leadership { " and the leadership of the table" } else { "" };
    print_escaped(format_args!("Released {}{table} of {}.", counted(events, "event"), Escaped(&node)));
    Ok(ExitCode::SUCCESS)
}
