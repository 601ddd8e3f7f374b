//! `outbox joins`: many events and one that follows: looking, and giving up.

use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand, ValueEnum};
use outbox::escape::{Escaped, shell_word};
use outbox::store::{JoinAct, JoinFilter};
use outbox::{EventId, Join, JoinId, JoinStatus, Step};
use serde::Serialize;

use crate::database::Tables;
use crate::open::Place;
use crate::show::{Output, Table, both, dash, json, short, status};
use crate::{note, nothing, say};

/// Look at joins; give them up
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  outbox joins list --status pending
  outbox joins show 01JD3V7Q0Z6W4T0M1S2K8N5R9X
  outbox joins cancel 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.";

#[derive(Subcommand)]
enum Action {
    List(List),
    Show(Show),
    Cancel(Cancel),
}

/// List joins, oldest first
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox joins list --group customer-42
  outbox joins list --status failed --json | jq -r .join_id

Exit codes: 0 some were found, 1 failure, 2 wrong usage, 3 nothing found.")]
struct List {
    #[command(flatten)]
    tables: Tables,

    /// Only this status
    #[arg(long, value_enum)]
    status: Option<Standing>,

    /// Only of this group
    #[arg(long, value_name = "KEY")]
    group: Option<String>,

    /// How many to show at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,

    /// Go on after this join, the last one of the page before
    #[arg(long, value_name = "JOIN_ID")]
    after: Option<String>,

    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Standing {
    /// Not all steps are settled, or nobody has said what follows
    Pending,
    /// All steps are settled, and what follows was written
    Completed,
    /// All steps are settled, some failed, and what follows a failure was written
    Failed,
    /// Given up
    Cancelled,
}

impl From<Standing> for JoinStatus {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Pending => JoinStatus::Pending,
            Standing::Completed => JoinStatus::Completed,
            Standing::Failed => JoinStatus::Failed,
            Standing::Cancelled => JoinStatus::Cancelled,
        }
    }
}

/// Show a join and its steps
///
/// With --json the first object is the join, and each that follows is a step.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox joins show 01JD3V7Q0Z6W4T0M1S2K8N5R9X --steps 500

Exit codes: 0 found, 1 failure, 2 wrong usage, 3 no such join.")]
struct Show {
    /// The join's id
    #[arg(value_name = "JOIN_ID")]
    id: String,

    #[command(flatten)]
    tables: Tables,

    /// How many steps to show at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    steps: u32,

    /// Show steps after this event
    #[arg(long, value_name = "EVENT_ID")]
    after: Option<String>,

    #[command(flatten)]
    output: Output,
}

/// Give joins up: nothing follows them. Their events are delivered all the same
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox joins cancel 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 all were cancelled, 1 failure, 2 wrong usage, 3 some were not: closed already, or not there.")]
struct Cancel {
    /// The joins' ids
    #[arg(value_name = "JOIN_ID", required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    tables: Tables,
}

/// A join for programs.
#[derive(Serialize)]
struct View<'a> {
    join_id: &'a str,
    status: String,
    grouping_key: Option<&'a str>,
    expected_steps: u32,
    attached_steps: u32,
    completed_steps: u32,
    failed_steps: u32,
    awaited: bool,
    metadata: Option<&'a str>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

impl<'a> View<'a> {
    fn of(join: &'a Join) -> Self {
        Self {
            join_id: join.id.as_str(),
            status: join.status.to_string(),
            grouping_key: join.grouping_key.as_deref(),
            expected_steps: join.expected,
            attached_steps: join.attached,
            completed_steps: join.completed,
            failed_steps: join.failed,
            awaited: join.awaited,
            metadata: join.metadata.as_deref(),
            created_at: join.created_at,
            updated_at: join.updated_at,
        }
    }
}

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    match options.action {
        Action::List(options) => list(options).await,
        Action::Show(options) => show(options).await,
        Action::Cancel(options) => cancel(options).await,
    }
}

async fn list(options: List) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let filter = JoinFilter {
        id: None,
        status: options.status.map(JoinStatus::from),
        grouping_key: options.group,
        after: options.after.map(JoinId::from),
    };
    let limit = options.limit as usize;
    let found = place.admin().joins(&filter, limit).await.map_err(|error| place.explain(error))?;
    let Some(last) = found.last() else {
        note("No join matches.");
        return Ok(nothing());
    };
    if options.output.json {
        for join in &found {
            json(&View::of(join))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let headers = ["JOIN ID", "STATUS", "GROUP", "#STEPS", "#DONE", "#DEAD", "AWAITED", "STARTED", "CHANGED"];
    let mut table = Table::new(headers);
    for join in &found {
        table.row([
            join.id.as_str().into(),
            status(&join.status.to_string()),
            join.grouping_key.as_deref().map_or_else(dash, |key| short(key, 40)).into(),
            steps(join).into(),
            join.completed.into(),
            join.failed.into(),
            (if join.awaited { "yes" } else { "no" }).into(),
            options.output.time(join.created_at).into(),
            options.output.time(join.updated_at).into(),
        ]);
    }
    table.print();
    if found.len() == limit {
        note(format_args!("There may be more: add --after {}", shell_word(last.id.as_str())));
    }
    Ok(ExitCode::SUCCESS)
}

/// How many steps it has, of how many, if it does not have all.
fn steps(join: &Join) -> String {
    if join.attached == join.expected {
        return join.expected.to_string();
    }
    format!("{} of {}", join.attached, join.expected)
}

async fn show(options: Show) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let (admin, id) = (place.admin(), JoinId::from(options.id));
    let Some(join) = admin.join(&id).await.map_err(|error| place.explain(error))? else {
        note(format_args!("There is no join {} in {}, table {}.", Escaped(&id), place.url, place.table));
        return Ok(nothing());
    };
    let after = options.after.map(EventId::from);
    let limit = options.steps as usize;
    let found = admin.steps(&id, after.as_ref(), limit).await.map_err(|error| place.explain(error))?;
    let word = |step: Option<Step>| match step {
        None => "PENDING",
        Some(Step::Completed) => "COMPLETED",
        Some(Step::Failed) => "FAILED",
    };
    if options.output.json {
        json(&View::of(&join))?;
        for (event, step) in &found {
            json(&serde_json::json!({ "join_id": id.as_str(), "event_id": event, "status": word(*step) }))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut page = Table::bare();
    page.fact("join", Some(&join.id));
    page.row(["status".into(), status(&join.status.to_string())]);
    page.fact("group", join.grouping_key.as_deref());
    page.fact(
        "steps",
        Some(format!("{}, {} completed, {} failed", steps(&join), join.completed, join.failed)),
    );
    page.fact("what follows", Some(if join.awaited { "is decided" } else { "nobody has said yet" }));
    page.fact("metadata", join.metadata.as_ref());
    page.fact("started", Some(both(join.created_at)));
    page.fact("changed", Some(both(join.updated_at)));
    page.print();
    if let Some((last, _)) = found.last() {
        let mut table = Table::new(["STEP (EVENT ID)", "STATUS"]);
        for (event, step) in &found {
            table.row([event.as_str().into(), status(word(*step))]);
        }
        say("");
        table.print();
        if found.len() == limit {
            note(format_args!("There may be more: add --after {}", shell_word(last.as_str())));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn cancel(options: Cancel) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let mut code = ExitCode::SUCCESS;
    for id in options.ids.iter().map(|id| JoinId::from(id.as_str())) {
        let shown = Escaped(&id);
        let audit = place.begin_audit("join.cancel", id.as_str(), None).await?;
        match cancel_one(&place, &id).await {
            Ok(None) => {
                audit.finish("done", Some(1)).await;
                say(format_args!("{shown}: cancelled"));
            }
            Ok(Some(why_not)) => {
                audit.finish(&format!("refused: {why_not}"), None).await;
                note(format_args!("{shown}: not cancelled: {why_not}"));
                code = nothing();
            }
            Err(error) => {
                audit.finish(&format!("failed: {error}"), None).await;
                return Err(place.explain(error));
            }
        }
    }
    Ok(code)
}

/// Cancels a join, or says why it is not cancelled.
async fn cancel_one(place: &Place, id: &JoinId) -> outbox::Result<Option<String>> {
    match place.admin().join(id).await? {
        None => return Ok(Some(format!("there is no such join in {}", place.url))),
        Some(join) if join.status != JoinStatus::Pending => {
            return Ok(Some(format!("it is {} already", join.status)));
        }
        Some(_) => {}
    }
    let acted = place.store.join(&JoinAct::Cancel { join: id.clone() }).await?;
    let closed = acted.join.map(|join| join.status).filter(|status| *status != JoinStatus::Cancelled);
    Ok(closed.map(|status| format!("it became {status} a moment ago")))
}
