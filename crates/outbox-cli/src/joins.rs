//! `outbox joins`: lists, shows and cancels joins.

use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand, ValueEnum};
use outbox::escape::{Escaped, shell_word};
use outbox::store::{JoinCommand, JoinFilter};
use outbox::{EventId, Join, JoinId, JoinStatus, Step};
use serde::Serialize;

use crate::database::Tables;
use crate::output::{Output, Table, dash, exact_and_relative, json, short, status};
use crate::target::Target;
use crate::{eprint_escaped, exit_nothing, print_escaped};

/// Inspect and cancel joins
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct JoinsArgs {
    #[command(subcommand)]
    command: JoinsCommand,
}

const EXAMPLES: &str = "\
Examples:
  outbox joins list --status pending
  outbox joins show 01JD3V7Q0Z6W4T0M1S2K8N5R9X
  outbox joins cancel 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.";

#[derive(Subcommand)]
enum JoinsCommand {
    List(JoinsListArgs),
    Show(JoinsShowArgs),
    Cancel(JoinsCancelArgs),
}

/// List joins, oldest first
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox joins list --group customer-42
  outbox joins list --status failed --json | jq -r .join_id

Exit codes: 0 joins found, 1 failure, 2 wrong usage, 3 nothing found.")]
struct JoinsListArgs {
    #[command(flatten)]
    tables: Tables,

    /// Only this status
    #[arg(long, value_enum)]
    status: Option<JoinStatusArg>,

    /// Only joins of this group
    #[arg(long, value_name = "KEY")]
    group: Option<String>,

    /// Maximum number of joins
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,

    /// Continue after this join, the last one of the previous page
    #[arg(long, value_name = "JOIN_ID")]
    after: Option<String>,

    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum JoinStatusArg {
    /// Some steps are not settled, or the follow-up events are not set
    Pending,
    /// All steps are settled, and the follow-up event was written
    Completed,
    /// All steps are settled, some failed, and the follow-up event for a failure was written
    Failed,
    /// Cancelled; no follow-up event is written
    Cancelled,
}

impl From<JoinStatusArg> for JoinStatus {
    fn from(status: JoinStatusArg) -> Self {
        match status {
            JoinStatusArg::Pending => JoinStatus::Pending,
            JoinStatusArg::Completed => JoinStatus::Completed,
            JoinStatusArg::Failed => JoinStatus::Failed,
            JoinStatusArg::Cancelled => JoinStatus::Cancelled,
        }
    }
}

/// Show a join and its steps
///
/// With --json the first object is the join, and each further object is a step.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox joins show 01JD3V7Q0Z6W4T0M1S2K8N5R9X --steps 500

Exit codes: 0 found, 1 failure, 2 wrong usage, 3 no such join.")]
struct JoinsShowArgs {
    /// The join's id
    #[arg(value_name = "JOIN_ID")]
    id: String,

    #[command(flatten)]
    tables: Tables,

    /// Maximum number of steps
    #[arg(long, value_name = "N", default_value_t = 50)]
    steps: u32,

    /// Show steps after this event
    #[arg(long, value_name = "EVENT_ID")]
    after: Option<String>,

    #[command(flatten)]
    output: Output,
}

/// Cancel joins: no follow-up event is written. The events of their steps are still delivered
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox joins cancel 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 all were cancelled, 1 failure, 2 wrong usage, 3 some were closed already or do not exist.")]
struct JoinsCancelArgs {
    /// The joins' ids
    #[arg(value_name = "JOIN_ID", required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    tables: Tables,
}

/// JSON form of a join.
#[derive(Serialize)]
struct JoinView<'a> {
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

impl<'a> JoinView<'a> {
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

pub(crate) async fn run(options: JoinsArgs) -> Result<ExitCode> {
    match options.command {
        JoinsCommand::List(options) => list(options).await,
        JoinsCommand::Show(options) => show(options).await,
        JoinsCommand::Cancel(options) => cancel(options).await,
    }
}

async fn list(options: JoinsListArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let filter = JoinFilter {
        id: None,
        status: options.status.map(JoinStatus::from),
        grouping_key: options.group,
        after: options.after.map(JoinId::from),
    };
    let limit = options.limit as usize;
    let found = target.admin().joins(&filter, limit).await.map_err(|error| target.explain(error))?;
    let Some(last) = found.last() else {
        eprint_escaped("No join matches.");
        return Ok(exit_nothing());
    };
    if options.output.json {
        for join in &found {
            json(&JoinView::of(join))?;
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
        eprint_escaped(format_args!("There may be more: add --after {}", shell_word(last.id.as_str())));
    }
    Ok(ExitCode::SUCCESS)
}

/// Number of steps; `2 of 3` while some are not attached yet.
fn steps(join: &Join) -> String {
    if join.attached == join.expected {
        return join.expected.to_string();
    }
    format!("{} of {}", join.attached, join.expected)
}

async fn show(options: JoinsShowArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let (admin, id) = (target.admin(), JoinId::from(options.id));
    let Some(join) = admin.join(&id).await.map_err(|error| target.explain(error))? else {
        eprint_escaped(format_args!(
            "Join {} not found in {}, table {}.",
            Escaped(&id),
            target.url,
            target.table
        ));
        return Ok(exit_nothing());
    };
    let after = options.after.map(EventId::from);
    let limit = options.steps as usize;
    let found = admin.steps(&id, after.as_ref(), limit).await.map_err(|error| target.explain(error))?;
    let step_status = |step: Option<Step>| match step {
        None => "PENDING",
        Some(Step::Completed) => "COMPLETED",
        Some(Step::Failed) => "FAILED",
    };
    if options.output.json {
        json(&JoinView::of(&join))?;
        for (event, step) in &found {
            json(
                &serde_json::json!({ "join_id": id.as_str(), "event_id": event, "status": step_status(*step) }),
            )?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut page = Table::bare();
    page.field("join", Some(&join.id));
    page.row(["status".into(), status(&join.status.to_string())]);
    page.field("group", join.grouping_key.as_deref());
    page.field(
        "steps",
        Some(format!("{}, {} completed, {} failed", steps(&join), join.completed, join.failed)),
    );
    page.field("follow-up", Some(if join.awaited { "set" } else { "not set yet" }));
    page.field("metadata", join.metadata.as_ref());
    page.field("started", Some(exact_and_relative(join.created_at)));
    page.field("changed", Some(exact_and_relative(join.updated_at)));
    page.print();
    if let Some((last, _)) = found.last() {
        let mut table = Table::new(["STEP (EVENT ID)", "STATUS"]);
        for (event, step) in &found {
            table.row([event.as_str().into(), status(step_status(*step))]);
        }
        print_escaped("");
        table.print();
        if found.len() == limit {
            eprint_escaped(format_args!("There may be more: add --after {}", shell_word(last.as_str())));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn cancel(options: JoinsCancelArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let mut code = ExitCode::SUCCESS;
    for id in options.ids.iter().map(|id| JoinId::from(id.as_str())) {
        let shown = Escaped(&id);
        let audit = target.begin_audit("join.cancel", id.as_str(), None).await?;
        match cancel_one(&target, &id).await {
            Ok(None) => {
                audit.finish("done", Some(1)).await;
                print_escaped(format_args!("{shown}: cancelled"));
            }
            Ok(Some(reason)) => {
                audit.finish(&format!("refused: {reason}"), None).await;
                eprint_escaped(format_args!("{shown}: not cancelled: {reason}"));
                code = exit_nothing();
            }
            Err(error) => {
                audit.finish(&format!("failed: {error}"), None).await;
                return Err(target.explain(error));
            }
        }
    }
    Ok(code)
}

/// Cancels a join, or returns why it cannot be cancelled.
async fn cancel_one(target: &Target, id: &JoinId) -> outbox::Result<Option<String>> {
    match target.admin().join(id).await? {
        None => return Ok(Some(format!("no such join in {}", target.url))),
        Some(join) if join.status != JoinStatus::Pending => {
            return Ok(Some(format!("it is {} already", join.status)));
        }
        Some(_) => {}
    }
    let acted = target.store.join(&JoinCommand::Cancel { join: id.clone() }).await?;
    let closed = acted.join.map(|join| join.status).filter(|status| *status != JoinStatus::Cancelled);
    Ok(closed.map(|status| format!("it became {status} a moment ago")))
}
