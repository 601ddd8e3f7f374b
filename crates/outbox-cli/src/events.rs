//! `outbox events`: lists and shows events, and cancels pending ones.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use outbox::escape::{Escaped, escape_json};
use outbox::store::{Filter, Status};
use outbox::{EventId, Payload};

use crate::database::Tables;
use crate::output::{EventView, Output, Table, json};
use crate::selector::{EventSelector, Page, ids};
use crate::{eprint_escaped, exit_nothing, print_escaped, print_raw};

/// Inspect events; cancel pending events
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EventsArgs {
    #[command(subcommand)]
    command: EventsCommand,
}

const EXAMPLES: &str = "\
Examples:
  outbox events list --status pending --type order.placed
  outbox events list --tenant acme --newer-than 1h --json | jq -r .event_id
  outbox events show 01JD3V7Q0Z6W4T0M1S2K8N5R9X --payload
  outbox events cancel 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.";

#[derive(Subcommand)]
enum EventsCommand {
    List(EventsListArgs),
    Show(EventsShowArgs),
    Cancel(EventsCancelArgs),
}

/// List events, oldest first
///
/// Payloads are not shown. With --json, each event is one object on a line, without its payload.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox events list                                    the oldest 50 events
  outbox events list --status retry --older-than 1h     events that failed, stored over an hour ago
  outbox events list --key order-42                     all events of one ordering key
  outbox events list --after 1234 --limit 500           the next page

Exit codes: 0 events found, 1 failure, 2 wrong usage, 3 nothing found.")]
struct EventsListArgs {
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    selector: EventSelector,

    /// Only this status; pending means new or retry
    #[arg(long, value_enum, help_heading = "Selection")]
    status: Option<EventStatusArg>,

    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum EventStatusArg {
    /// Waiting for its first attempt
    New,
    /// Failed, and waiting for its next attempt
    Retry,
    /// New or retry
    Pending,
    /// Delivered
    Done,
    /// Dead-lettered
    Dead,
}

/// Show one event, without its payload
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox events show 01JD3V7Q0Z6W4T0M1S2K8N5R9X
  outbox events show 01JD3V7Q0Z6W4T0M1S2K8N5R9X --payload --json | jq .payload

Exit codes: 0 found, 1 failure, 2 wrong usage, 3 no such event.")]
struct EventsShowArgs {
    #[command(flatten)]
    one: OneEventArgs,
}

/// Arguments of commands that show one event.
#[derive(Args)]
pub(crate) struct OneEventArgs {
    /// The event's id
    #[arg(value_name = "EVENT_ID")]
    id: String,

    #[command(flatten)]
    tables: Tables,

    /// Also show the payload. It may contain personal or secret data: mind where the output goes
    #[arg(long)]
    payload: bool,

    #[command(flatten)]
    output: Output,
}

/// Cancel pending events that no relay holds: they are deleted and never delivered
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox events cancel 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 all were cancelled, 1 failure, 2 wrong usage, 3 some were done, dead, being handled, or not found.")]
struct EventsCancelArgs {
    /// The events' ids
    #[arg(value_name = "EVENT_ID", required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    tables: Tables,
}

pub(crate) async fn run(options: EventsArgs) -> Result<ExitCode> {
    match options.command {
        EventsCommand::List(options) => list(options).await,
        EventsCommand::Show(EventsShowArgs { one }) => show(one).await,
        EventsCommand::Cancel(options) => cancel(options).await,
    }
}

async fn list(options: EventsListArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let (status, pending) = match options.status {
        None => (None, false),
        Some(EventStatusArg::Pending) => (None, true),
        Some(EventStatusArg::New) => (Some(Status::New), false),
        Some(EventStatusArg::Retry) => (Some(Status::Retry), false),
        Some(EventStatusArg::Done) => (Some(Status::Done), false),
        Some(EventStatusArg::Dead) => (Some(Status::Dead), false),
    };
    let filter = Filter { status, pending, after_seq: options.page.after, ..options.selector.any() };
    let found = target.admin().list(&filter, options.page.limit()).await;
    let found = found.map_err(|error| target.explain(error))?;
    let Some(last) = found.last() else {
        eprint_escaped("No event matches.");
        return Ok(exit_nothing());
    };
    if options.output.json {
        for event in &found {
            json(&EventView::of(event, false))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(EventView::HEADERS);
    for event in &found {
        table.row(EventView::of(event, false).cells(options.output));
    }
    table.print();
    options.page.more(found.len(), last.seq);
    Ok(ExitCode::SUCCESS)
}

/// Shows one event.
pub(crate) async fn show(one: OneEventArgs) -> Result<ExitCode> {
    let OneEventArgs { id, tables, payload, output } = one;
    let (target, id) = (tables.open().await?, EventId::from(id));
    let found = target.admin().find(&id).await.map_err(|error| target.explain(error))?;
    let Some(stored) = found else {
        eprint_escaped(format_args!(
            "Event {} not found in {}, table {}.",
            Escaped(&id),
            target.url,
            target.table
        ));
        eprint_escaped("hint: it may have been deleted after delivery, purged, or cancelled");
        return Ok(exit_nothing());
    };
    let view = EventView::of(&stored, payload);
    if output.json {
        json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    view.page();
    if let (true, Ok(event)) = (payload, &stored.event) {
        print_escaped("");
        match event.raw_payload() {
            Payload::Json(text) if std::io::stdout().is_terminal() => print_raw(escape_json(text)),
            Payload::Json(text) => print_raw(text),
            Payload::Bytes { data, .. } if std::io::stdout().is_terminal() => {
                print_escaped(String::from_utf8_lossy(data));
            }
            // Unchanged to a file or a pipe. A closed pipe is not an error.
            Payload::Bytes { data, .. } => {
                let _ = std::io::stdout().write_all(data);
                print_escaped("");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn cancel(options: EventsCancelArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let mut code = ExitCode::SUCCESS;
    for id in ids(&options.ids) {
        let (admin, shown) = (target.admin(), Escaped(&id));
        let refusal = "is not pending, or is being handled";
        if target.change_one("event.cancel", &id, refusal, admin.cancel(&id)).await? {
            print_escaped(format_args!("{shown}: cancelled"));
            continue;
        }
        code = exit_nothing();
        let explained = admin.explain(&id).await.map_err(|error| target.explain(error))?;
        eprint_escaped(format_args!("{shown}: not cancelled. {explained}"));
    }
    Ok(code)
}
