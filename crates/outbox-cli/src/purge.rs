//! `outbox purge`: deletes old DONE events, and DEAD events on request.

use std::process::ExitCode;

use anyhow::Result;
use outbox::store::{Filter, Purge, Purgeable, Status};

use crate::database::Tables;
use crate::output::{Table, counted, number, status};
use crate::progress::{Interrupt, bar};
use crate::target::Target;
use crate::time_args::Age;
use crate::{eprint_escaped, exit_nothing, print_escaped};

/// Delete old DONE events
///
/// Without --yes only prints what would be deleted. Ages count from when an event became DONE or
/// DEAD. Never deleted are pending events, steps of open joins, and dead events that block later
/// events of their key. Relays purge DONE events themselves, by default after seven days, and dead
/// events only if `dead-retention` is set.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PurgeArgs {
    #[command(flatten)]
    tables: Tables,

    /// Only events that became DONE or DEAD longer ago than this, such as 12h or 7d
    #[arg(long, value_name = "TIME")]
    older_than: Age,

    /// Also delete dead events, except those that block later events of their key
    #[arg(long)]
    with_dead: bool,

    /// Also delete closed joins and inbox entries of that age
    #[arg(long)]
    with_joins_and_inbox: bool,

    /// Delete. Without this, only print what would be deleted
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,

    /// Only print what would be deleted; the same as without --yes
    #[arg(long)]
    dry_run: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox purge --older-than 7d                      print what would be deleted
  outbox purge --older-than 7d --yes                delete it, 500 rows at a time
  outbox purge --older-than 90d --with-dead --yes   also delete dead events

Exit codes: 0 events deleted or to delete, 1 failure, 2 wrong usage, 3 nothing to delete.";

/// Rows per transaction: few enough not to block other transactions for long.
const BATCH: usize = 500;

pub(crate) async fn run(options: &PurgeArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let explain = |error| target.explain(error);
    let age = options.older_than;
    let count = async |status| {
        let filter = Filter { status: Some(status), settled_before: Some(age.0), ..Filter::default() };
        target.store.count(&filter).await.map_err(explain)
    };
    let done = count(Status::Done).await?;
    let dead = if options.with_dead { count(Status::Dead).await? } else { 0 };
    if !options.yes {
        if done + dead == 0 {
            let or_dead = if options.with_dead { " or DEAD" } else { "" };
            eprint_escaped(format_args!("No event became DONE{or_dead} more than {age} ago."));
            if !options.with_joins_and_inbox {
                return Ok(exit_nothing());
            }
        }
        print_escaped(format_args!(
            "Would delete {} settled more than {age} ago:\n",
            counted(done + dead, "event")
        ));
        let mut table = Table::new(["STATUS", "#COUNT"]);
        table.row([status("DONE"), number(done).into()]);
        if options.with_dead {
            table.row([status("DEAD"), number(dead).into()]);
        }
        table.print();
        if dead > 0 {
            print_escaped(
                "\nDead events that block later events of their key are counted here, but not deleted.",
            );
        }
        if options.with_joins_and_inbox {
            print_escaped(
                "\nAlso closed joins and inbox entries of that age, which are not counted in advance.",
            );
        }
        print_escaped("\nNothing was changed. To delete them, add --yes");
        return Ok(ExitCode::SUCCESS);
    }

    let details = serde_json::json!({
        "older_than": age.to_string(), "with_joins_and_inbox": options.with_joins_and_inbox,
    });
    let audit_target = if options.with_dead { "done and dead" } else { "done" };
    let audit = target.begin_audit("purge", audit_target, Some(details)).await?;
    let mut deleted = 0;
    let ended = delete(&target, age, done + dead, options, &mut deleted).await;
    match &ended {
        Ok(PurgeEnd::Done) => audit.finish("done", Some(deleted)).await,
        Ok(PurgeEnd::Stopped) => audit.finish("stopped", Some(deleted)).await,
        Err(error) => audit.finish(&format!("failed: {error:#}"), Some(deleted)).await,
    }
    ended?;
    Ok(if deleted == 0 { exit_nothing() } else { ExitCode::SUCCESS })
}

/// How a purge ended.
enum PurgeEnd {
    Done,
    Stopped,
}

/// Deletes in batches. Adds to `deleted` after each batch, so that it is right if a later batch
/// fails.
async fn delete(
    target: &Target,
    age: Age,
    expected: u64,
    options: &PurgeArgs,
    deleted: &mut u64,
) -> Result<PurgeEnd> {
    let explain = |error| target.explain(error);
    let kinds = if options.with_dead { &[Purgeable::Done, Purgeable::Dead][..] } else { &[Purgeable::Done] };
    let mut interrupt = Interrupt::listen();
    let bar = bar(expected, "deleted");
    let mut totals = [0; 2];
    let mut stopped = false;
    for (what, total) in kinds.iter().zip(&mut totals) {
        let purge = Purge { what: *what, older_than: age.0, limit: BATCH };
        while !stopped {
            let purged = target.store.purge(purge).await.map_err(explain)?;
            *total += purged;
            *deleted += purged;
            bar.inc(purged);
            stopped = interrupt.wait(std::time::Duration::ZERO).await;
            if purged < BATCH as u64 {
                break;
            }
        }
    }
    bar.finish_and_clear();
    let verb = if stopped { "Stopped. Deleted" } else { "Deleted" };
    let [done, dead] = totals;
    if options.with_dead {
        print_escaped(format_args!(
            "{verb} {} and {}.",
            counted(done, "DONE event"),
            counted(dead, "DEAD event")
        ));
    } else {
        print_escaped(format_args!("{verb} {}.", counted(done, "DONE event")));
    }
    if options.with_joins_and_inbox && !stopped {
        let joins = target.admin().purge_joins(age.0).await.map_err(explain)?;
        *deleted += joins;
        let inbox = target.admin().purge_inbox(age.0).await.map_err(explain)?;
        *deleted += inbox;
        print_escaped(format_args!(
            "Deleted {} and {} of the inbox.",
            counted(joins, "join"),
            counted(inbox, "row")
        ));
    }
    Ok(if stopped { PurgeEnd::Stopped } else { PurgeEnd::Done })
}
