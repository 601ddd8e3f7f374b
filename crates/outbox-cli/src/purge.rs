//! `outbox purge`: deletes old events that are done or dead.

use std::process::ExitCode;

use anyhow::Result;
use outbox::store::{Filter, Purge, Purgeable, Status};

use crate::age::Age;
use crate::database::Tables;
use crate::progress::{Interrupt, bar};
use crate::show::{Table, counted, number, status};
use crate::{nothing, say};

/// Delete old events that are done or dead
///
/// Without --yes it only says what it would do. Ages count from when an event became DONE or DEAD. What is pending is never
/// deleted, nor are steps of joins that are still open. Relays purge by themselves, after seven days unless told otherwise.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(flatten)]
    tables: Tables,

    /// Only events that became so longer ago than this, such as 12h or 7d
    #[arg(long, value_name = "TIME")]
    older_than: Age,

    /// Only DONE events: dead ones stay
    #[arg(long)]
    done_only: bool,

    /// Delete closed joins and inbox entries of that age too
    #[arg(long)]
    with_joins_and_inbox: bool,

    /// Delete. Without this, only say what would be deleted
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,

    /// Only say what would be deleted; the same as leaving --yes out
    #[arg(long)]
    dry_run: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox purge --older-than 7d                      what it would delete
  outbox purge --older-than 7d --yes                deletes it, 500 rows at a time
  outbox purge --older-than 1h --done-only --yes

Exit codes: 0 deleted, or would be, 1 failure, 2 wrong usage, 3 nothing to delete.";

/// Rows a transaction: short enough not to be in anybody's way.
const BATCH: usize = 500;

pub(crate) async fn run(options: &Options) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let explain = |error| place.explain(error);
    let age = options.older_than;
    let count = async |status| {
        let filter = Filter { status: Some(status), settled_before: Some(age.0), ..Filter::default() };
        place.store.count(&filter).await.map_err(explain)
    };
    let done = count(Status::Done).await?;
    let dead = if options.done_only { 0 } else { count(Status::Dead).await? };
    if !options.yes {
        if done + dead == 0 {
            eprintln!(
                "No event became DONE{} more than {age} ago.",
                if options.done_only { "" } else { " or DEAD" }
            );
            if !options.with_joins_and_inbox {
                return Ok(nothing());
            }
        }
        say(format_args!(
            "Would delete {} that became so more than {age} ago:\n",
            counted(done + dead, "event")
        ));
        let mut table = Table::new(["STATUS", "#COUNT"]);
        for (name, count) in [("DONE", done), ("DEAD", dead)] {
            table.row([status(name), number(count).into()]);
        }
        table.print();
        if options.with_joins_and_inbox {
            say("\nand closed joins and inbox entries of that age, which are not counted beforehand.");
        }
        say("\nNothing was changed. To delete them, add --yes");
        return Ok(ExitCode::SUCCESS);
    }

    let what = if options.done_only { Purgeable::Done } else { Purgeable::Finished };
    let purge = Purge { what, older_than: age.0, limit: BATCH };
    let mut interrupt = Interrupt::listen();
    let bar = bar(done + dead, "deleted");
    let mut total = 0;
    let mut stopped = false;
    loop {
        let purged = place.store.purge(purge).await.map_err(explain)?;
        total += purged;
        bar.set_position(total);
        stopped = stopped || interrupt.within(std::time::Duration::ZERO).await;
        if stopped || purged < BATCH as u64 {
            break;
        }
    }
    bar.finish_and_clear();
    let verb = if stopped { "Stopped. Deleted" } else { "Deleted" };
    let mut deleted = total;
    say(format_args!("{verb} {}.", counted(total, "event")));
    if options.with_joins_and_inbox && !stopped {
        let joins = place.admin().purge_joins(age.0).await.map_err(explain)?;
        let inbox = place.admin().purge_inbox(age.0).await.map_err(explain)?;
        say(format_args!("Deleted {} and {} of the inbox.", counted(joins, "join"), counted(inbox, "row")));
        deleted += joins + inbox;
    }
    Ok(if deleted == 0 { nothing() } else { ExitCode::SUCCESS })
}
