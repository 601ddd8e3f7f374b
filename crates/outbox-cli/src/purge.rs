//! `outbox purge`: deletes old events that are done, and dead ones if asked to.

use std::process::ExitCode;

use anyhow::Result;
use outbox::store::{Filter, Purge, Purgeable, Status};

use crate::age::Age;
use crate::database::Tables;
use crate::open::Place;
use crate::progress::{Interrupt, bar};
use crate::show::{Table, counted, number, status};
use crate::{note, nothing, say};

/// Delete old events that are done
///
/// Without --yes it only says what it would do. Ages count from when an event became DONE or DEAD. Pending events are never
/// deleted, nor are steps of joins that are still open, nor dead events that hold back later events of their key. Relays
/// purge DONE events by themselves, after seven days unless told otherwise, and dead ones only where `dead-retention` is set.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(flatten)]
    tables: Tables,

    /// Only events that became so longer ago than this, such as 12h or 7d
    #[arg(long, value_name = "TIME")]
    older_than: Age,

    /// Delete dead events too, apart from those that hold back later events of their key
    #[arg(long)]
    with_dead: bool,

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
  outbox purge --older-than 90d --with-dead --yes   dead events too

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
    let dead = if options.with_dead { count(Status::Dead).await? } else { 0 };
    if !options.yes {
        if done + dead == 0 {
            let or_dead = if options.with_dead { " or DEAD" } else { "" };
            note(format_args!("No event became DONE{or_dead} more than {age} ago."));
            if !options.with_joins_and_inbox {
                return Ok(nothing());
            }
        }
        say(format_args!(
            "Would delete {} that became so more than {age} ago:\n",
            counted(done + dead, "event")
        ));
        let mut table = Table::new(["STATUS", "#COUNT"]);
        table.row([status("DONE"), number(done).into()]);
        if options.with_dead {
            table.row([status("DEAD"), number(dead).into()]);
        }
        table.print();
        if dead > 0 {
            say("\nDead events that hold back later events of their key are counted here, and stay.");
        }
        if options.with_joins_and_inbox {
            say("\nand closed joins and inbox entries of that age, which are not counted beforehand.");
        }
        say("\nNothing was changed. To delete them, add --yes");
        return Ok(ExitCode::SUCCESS);
    }

    let details = serde_json::json!({
        "older_than": age.to_string(), "with_joins_and_inbox": options.with_joins_and_inbox,
    });
    let target = if options.with_dead { "done and dead" } else { "done" };
    let audit = place.begin_audit("purge", target, Some(details)).await?;
    let mut deleted = 0;
    let ended = delete(&place, age, done + dead, options, &mut deleted).await;
    match &ended {
        Ok(Ended::Done) => audit.finish("done", Some(deleted)).await,
        Ok(Ended::Stopped) => audit.finish("stopped", Some(deleted)).await,
        Err(error) => audit.finish(&format!("failed: {error:#}"), Some(deleted)).await,
    }
    ended?;
    Ok(if deleted == 0 { nothing() } else { ExitCode::SUCCESS })
}

/// How a purge came to its end.
enum Ended {
    Done,
    Stopped,
}

/// Deletes batch by batch. Counts in `deleted`, also if a later batch fails.
async fn delete(
    place: &Place,
    age: Age,
    expected: u64,
    options: &Options,
    deleted: &mut u64,
) -> Result<Ended> {
    let explain = |error| place.explain(error);
    let kinds = if options.with_dead { &[Purgeable::Done, Purgeable::Dead][..] } else { &[Purgeable::Done] };
    let mut interrupt = Interrupt::listen();
    let bar = bar(expected, "deleted");
    let mut totals = [0; 2];
    let mut stopped = false;
    for (what, total) in kinds.iter().zip(&mut totals) {
        let purge = Purge { what: *what, older_than: age.0, limit: BATCH };
        while !stopped {
            let purged = place.store.purge(purge).await.map_err(explain)?;
            *total += purged;
            *deleted += purged;
            bar.inc(purged);
            stopped = interrupt.within(std::time::Duration::ZERO).await;
            if purged < BATCH as u64 {
                break;
            }
        }
    }
    bar.finish_and_clear();
    let verb = if stopped { "Stopped. Deleted" } else { "Deleted" };
    let [done, dead] = totals;
    if options.with_dead {
        say(format_args!("{verb} {} and {}.", counted(done, "DONE event"), counted(dead, "DEAD event")));
    } else {
        say(format_args!("{verb} {}.", counted(done, "DONE event")));
    }
    if options.with_joins_and_inbox && !stopped {
        let joins = place.admin().purge_joins(age.0).await.map_err(explain)?;
        *deleted += joins;
        let inbox = place.admin().purge_inbox(age.0).await.map_err(explain)?;
        *deleted += inbox;
        say(format_args!("Deleted {} and {} of the inbox.", counted(joins, "join"), counted(inbox, "row")));
    }
    Ok(if stopped { Ended::Stopped } else { Ended::Done })
}
