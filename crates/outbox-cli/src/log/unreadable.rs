//! `outbox log unreadable`: events of the log that publishers skipped because they cannot be
//! decoded.

use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, Utc};
use clap::Args;
use outbox::store::Unreadable;
use serde::Serialize;

use crate::database::Tables;
use crate::output::{Output, Table, json, short};
use crate::target::Target;
use crate::{eprint_escaped, exit_nothing};

/// List events of the log that publishers skipped because they cannot be decoded
///
/// A row with invalid headers, a time outside of the calendar or a payload over the limit cannot be
/// published. The first publisher that reaches the row records it here and skips it. To publish it
/// after all, repair the row in the log and reset the publishers to the position before it. The
/// entry stays as a record.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox log unreadable
  outbox log unreadable --limit 1000 --json

Exit codes: 0 unreadable events found, 1 failure, 2 wrong usage, 3 none found.")]
pub(super) struct LogUnreadableArgs {
    #[command(flatten)]
    tables: Tables,

    /// Maximum number of entries, the greatest positions first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,

    #[command(flatten)]
    output: Output,
}

/// JSON form of an unreadable event.
#[derive(Serialize)]
struct UnreadableView<'a> {
    position: i64,
    reason: &'a str,
    noted_at: DateTime<Utc>,
}

/// Reads the entries with the greatest positions.
pub(super) async fn of(target: &Target, limit: usize) -> Result<Vec<Unreadable>> {
    target.log_admin().unreadable(limit).await.map_err(|error| target.explain(error))
}

pub(super) async fn run(options: LogUnreadableArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let entries = of(&target, options.limit as usize).await?;
    if entries.is_empty() {
        eprint_escaped("No publisher has found an unreadable event.");
        return Ok(exit_nothing());
    }
    if options.output.json {
        for Unreadable { position, reason, noted_at } in &entries {
            json(&UnreadableView { position: position.get(), reason, noted_at: *noted_at })?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["#POSITION", "NOTED", "REASON"]);
    for entry in &entries {
        table.row([
            entry.position.get().into(),
            options.output.time(entry.noted_at).into(),
            short(&entry.reason, 120).into(),
        ]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}
