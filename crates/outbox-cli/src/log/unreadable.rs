//! `outbox log unreadable`: the events of the log that publishers passed over.

use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, Utc};
use clap::Args;
use outbox::store::Unreadable;
use serde::Serialize;

use crate::database::Tables;
use crate::open::Place;
use crate::show::{Output, Table, json, short};
use crate::{note, nothing};

/// List events of the log that publishers passed over, because they cannot be read
///
/// A row with invalid headers, a time outside of the calendar or a payload over the limit cannot be published. The first
/// publisher that reaches it notes it here and goes on. To publish it after all, repair the row in the log and reset the
/// publishers to the position before it. The entry stays as a record.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox log unreadable
  outbox log unreadable --limit 1000 --json

Exit codes: 0 some were found, 1 failure, 2 wrong usage, 3 every event could be read.")]
pub(super) struct Options {
    #[command(flatten)]
    tables: Tables,

    /// List this many at most, the greatest positions first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,

    #[command(flatten)]
    output: Output,
}

/// An unreadable event for programs.
#[derive(Serialize)]
struct UnreadableView<'a> {
    position: i64,
    reason: &'a str,
    noted_at: DateTime<Utc>,
}

/// Reads the newest entries.
pub(super) async fn of(place: &Place, limit: usize) -> Result<Vec<Unreadable>> {
    place.log_admin().unreadable(limit).await.map_err(|error| place.explain(error))
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let entries = of(&place, options.limit as usize).await?;
    if entries.is_empty() {
        note("Publishers could read every event that they came to.");
        return Ok(nothing());
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
