//! `outbox events`: looking at events, and taking pending ones back.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use outbox::escape::{Escaped, escape_json};
use outbox::store::{Filter, Status};
use outbox::{EventId, Payload};

use crate::database::Tables;
use crate::show::{EventView, Output, Table, json};
use crate::which::{Page, Which, ids};
use crate::{note, nothing, say, say_as_is};

/// Look at events; take pending ones back
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  outbox events list --status pending --type order.placed
  outbox events list --tenant acme --newer-than 1h --json | jq -r .event_id
  outbox events show 01JD3V7Q0Z6W4T0M1S2K8N5R9X --payload
  outbox events cancel 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.";

#[derive(Subcommand)]
enum Action {
    List(List),
    Show(Show),
    Cancel(Cancel),
}

/// List events, oldest first
///
/// Payloads are not shown. With --json each event is an object on a line, without its payload.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox events list                                    the oldest 50
  outbox events list --status retry --older-than 1h     what has been failing for long
  outbox events list --key order-42                     everything about one ordering key
  outbox events list --after 1234 --limit 500           the next page

Exit codes: 0 some were found, 1 failure, 2 wrong usage, 3 nothing found.")]
struct List {
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    which: Which,

    /// Only this status; pending is new and retry together
    #[arg(long, value_enum, help_heading = "Selection")]
    status: Option<Standing>,

    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Standing {
    /// Waiting for its first delivery
    New,
    /// Failed, and waiting to be tried again
    Retry,
    /// New or retry
    Pending,
    /// Delivered
    Done,
    /// Given up
    Dead,
}

/// Show everything about one event, except its payload
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox events show 01JD3V7Q0Z6W4T0M1S2K8N5R9X
  outbox events show 01JD3V7Q0Z6W4T0M1S2K8N5R9X --payload --json | jq .payload

Exit codes: 0 found, 1 failure, 2 wrong usage, 3 no such event.")]
struct Show {
    #[command(flatten)]
    one: One,
}

/// One event, and how it is shown.
#[derive(Args)]
pub(crate) struct One {
    /// The event's id
    #[arg(value_name = "EVENT_ID")]
    id: String,

    #[command(flatten)]
    tables: Tables,

    /// Show the payload too. It may hold what is nobody's business: mind where this is written
    #[arg(long)]
    payload: bool,

    #[command(flatten)]
    output: Output,
}

/// Take back pending events that nobody holds: they are deleted, and never delivered
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox events cancel 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 all were cancelled, 1 failure, 2 wrong usage, 3 some were not: done, dead, being handled, or not there.")]
struct Cancel {
    /// The events' ids
    #[arg(value_name = "EVENT_ID", required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    tables: Tables,
}

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    match options.action {
        Action::List(options) => list(options).await,
        Action::Show(Show { one }) => show(one).await,
        Action::Cancel(options) => cancel(options).await,
    }
}

async fn list(options: List) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let (status, pending) = match options.status {
        None => (None, false),
        Some(Standing::Pending) => (None, true),
        Some(Standing::New) => (Some(Status::New), false),
        Some(Standing::Retry) => (Some(Status::Retry), false),
        Some(Standing::Done) => (Some(Status::Done), false),
        Some(Standing::Dead) => (Some(Status::Dead), false),
    };
    let filter = Filter { status, pending, after_seq: options.page.after, ..options.which.any() };
    let found = place.admin().list(&filter, options.page.limit()).await;
    let found = found.map_err(|error| place.explain(error))?;
    let Some(last) = found.last() else {
        note("No event matches.");
        return Ok(nothing());
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
pub(crate) async fn show(one: One) -> Result<ExitCode> {
    let One { id, tables, payload, output } = one;
    let (place, id) = (tables.open().await?, EventId::from(id));
    let found = place.admin().find(&id).await.map_err(|error| place.explain(error))?;
    let Some(stored) = found else {
        note(format_args!("There is no event {} in {}, table {}.", Escaped(&id), place.url, place.table));
        note("hint: it may have been delivered and deleted, purged, or cancelled");
        return Ok(nothing());
    };
    let view = EventView::of(&stored, payload);
    if output.json {
        json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    view.page();
    if let (true, Ok(event)) = (payload, &stored.event) {
        say("");
        match event.raw_payload() {
            Payload::Json(text) if std::io::stdout().is_terminal() => say_as_is(escape_json(text)),
            Payload::Json(text) => say_as_is(text),
            Payload::Bytes { data, .. } if std::io::stdout().is_terminal() => {
                say(String::from_utf8_lossy(data));
            }
            // To a file or a program as they are. A reader that has gone away is not a failure of ours.
            Payload::Bytes { data, .. } => {
                let _ = std::io::stdout().write_all(data);
                say("");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn cancel(options: Cancel) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let mut code = ExitCode::SUCCESS;
    for id in ids(&options.ids) {
        let (admin, shown) = (place.admin(), Escaped(&id));
        let if_not = "is not pending, or is being handled";
        if place.change_one("event.cancel", &id, if_not, admin.cancel(&id)).await? {
            say(format_args!("{shown}: cancelled"));
            continue;
        }
        code = nothing();
        let explained = admin.explain(&id).await.map_err(|error| place.explain(error))?;
        note(format_args!("{shown}: not cancelled. {explained}"));
    }
    Ok(code)
}
