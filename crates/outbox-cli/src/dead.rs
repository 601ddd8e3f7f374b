//! `outbox dead`: lists, counts, shows and replays dead events.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Subcommand};
use outbox::escape::Escaped;
use outbox::store::Filter;

use crate::audit::selection;
use crate::database::Tables;
use crate::output::{EventView, Output, Table, counted, json, number};
use crate::progress::{Interrupt, bar};
use crate::selector::{EventSelector, Page, ids};
use crate::target::Target;
use crate::time_args::Rate;
use crate::{Usage, eprint_escaped, events, exit_nothing, print_escaped};

/// Inspect and replay dead events
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DeadArgs {
    #[command(subcommand)]
    command: DeadCommand,
}

const EXAMPLES: &str = "\
Examples:
  outbox dead list --type order.placed
  outbox dead count --newer-than 1h
  outbox dead replay 01JD3V7Q0Z6W4T0M1S2K8N5R9X
  outbox dead replay-all --type order.placed                     print what would be replayed
  outbox dead replay-all --type order.placed --rate 50/s --yes   replay it

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.";

#[derive(Subcommand)]
enum DeadCommand {
    List(DeadListArgs),
    Count(DeadCountArgs),
    Show(DeadShowArgs),
    Replay(DeadReplayArgs),
    ReplayAll(DeadReplayAllArgs),
}

/// List dead events, oldest first, with their last error
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox dead list
  outbox dead list --newer-than 1h --json | jq -r .last_error | sort | uniq -c

Exit codes: 0 events found, 1 failure, 2 wrong usage, 3 nothing found.")]
struct DeadListArgs {
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    selector: EventSelector,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    output: Output,
}

/// Count dead events
#[derive(Args)]
#[command(after_help = "\
Examples:
  test \"$(outbox dead count)\" -eq 0 || echo 'there are dead events'
  outbox dead count --by-type

Exit codes: 0 counted, even if there are none, 1 failure, 2 wrong usage.")]
struct DeadCountArgs {
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    selector: EventSelector,

    /// Count by event type, the most frequent first
    #[arg(long)]
    by_type: bool,

    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

/// Show one dead event, without its payload
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox dead show 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 found, 1 failure, 2 wrong usage, 3 no such event.")]
struct DeadShowArgs {
    #[command(flatten)]
    one: events::OneEventArgs,
}

/// Replay dead events: they become NEW again, with no attempts
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox dead replay 01JD3V7Q0Z6W4T0M1S2K8N5R9X 01JD3V7Q10F5S8D3C7B2A9Z4Y6

Exit codes: 0 all were replayed, 1 failure, 2 wrong usage, 3 some are not dead or do not exist.")]
struct DeadReplayArgs {
    /// The events' ids
    #[arg(value_name = "EVENT_ID", required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    tables: Tables,
}

/// Replay all selected dead events
///
/// Without --yes only prints what would be replayed. Each batch is one transaction, oldest events
/// first; an event that is dead-lettered again meanwhile is not replayed twice. Ctrl-C stops
/// between two batches; the rest can be replayed later.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox dead replay-all --type order.placed              print what would be replayed
  outbox dead replay-all --type order.placed --yes        replay it
  outbox dead replay-all --all --rate 100/s --yes         all dead events, slowly

Exit codes: 0 events replayed or to replay, 1 failure, 2 wrong usage, 3 nothing to replay.")]
struct DeadReplayAllArgs {
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    selector: EventSelector,

    /// All dead events: required with --yes if nothing is selected
    #[arg(long, help_heading = "Selection")]
    all: bool,

    /// Only events after this SEQ: to continue where an earlier run was stopped
    #[arg(long, value_name = "SEQ", help_heading = "Selection")]
    after: Option<i64>,

    /// Replay. Without this, only print what would be replayed
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,

    /// Only print what would be replayed; the same as without --yes
    #[arg(long)]
    dry_run: bool,

    /// Maximum rate, such as 100/s or 6000/m
    #[arg(long, value_name = "N/s")]
    rate: Option<Rate>,

    /// Maximum number of events per transaction
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
}

pub(crate) async fn run(options: DeadArgs) -> Result<ExitCode> {
    match options.command {
        DeadCommand::List(options) => list(options).await,
        DeadCommand::Count(options) => count(options).await,
        DeadCommand::Show(DeadShowArgs { one }) => events::show(one).await,
        DeadCommand::Replay(options) => replay(options).await,
        DeadCommand::ReplayAll(options) => replay_all(options).await,
    }
}

async fn list(options: DeadListArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let filter = Filter { after_seq: options.page.after, ..options.selector.dead() };
    let found = target.admin().list(&filter, options.page.limit()).await;
    let found = found.map_err(|error| target.explain(error))?;
    let Some(last) = found.last() else {
        eprint_escaped("No dead event matches.");
        return Ok(exit_nothing());
    };
    if options.output.json {
        for event in &found {
            json(&EventView::of(event, false))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(EventView::DEAD_HEADERS);
    for event in &found {
        table.row(EventView::of(event, false).dead_cells(options.output));
    }
    table.print();
    options.page.more(found.len(), last.seq);
    Ok(ExitCode::SUCCESS)
}

async fn count(options: DeadCountArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let filter = options.selector.dead();
    if options.by_type {
        let types = target.admin().types(&filter, 10_000).await.map_err(|error| target.explain(error))?;
        if options.json {
            for (event_type, count) in &types {
                json(&serde_json::json!({ "event_type": event_type, "count": count }))?;
            }
        } else {
            by_type(&types).print();
        }
        return Ok(ExitCode::SUCCESS);
    }
    let count = target.store.count(&filter).await.map_err(|error| target.explain(error))?;
    if options.json {
        json(&serde_json::json!({ "count": count }))?;
    } else {
        print_escaped(count);
    }
    Ok(ExitCode::SUCCESS)
}

fn by_type(types: &[(String, u64)]) -> Table {
    let mut table = Table::new(["#COUNT", "TYPE"]);
    for (event_type, count) in types {
        table.row([number(*count).into(), event_type.into()]);
    }
    table
}

async fn replay(options: DeadReplayArgs) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let mut code = ExitCode::SUCCESS;
    for id in ids(&options.ids) {
        let (admin, shown) = (target.admin(), Escaped(&id));
        if target.change_one("event.replay", &id, "is not dead", admin.replay(&id)).await? {
            print_escaped(format_args!("{shown}: replayed"));
            continue;
        }
        code = exit_nothing();
        let explained = admin.explain(&id).await.map_err(|error| target.explain(error))?;
        eprint_escaped(format_args!("{shown}: not replayed: it is not dead. {explained}"));
    }
    Ok(code)
}

async fn replay_all(options: DeadReplayAllArgs) -> Result<ExitCode> {
    let everything = options.selector.is_everything();
    if options.yes && everything && !options.all {
        return Err(Usage(
            "this would replay all dead events: select some, as with --type, or add --all".to_owned(),
        )
        .into());
    }
    let target = options.tables.open().await?;
    let filter = Filter { after_seq: options.after, ..options.selector.dead() };
    let count = target.store.count(&filter).await.map_err(|error| target.explain(error))?;
    if count == 0 {
        eprint_escaped("No dead event matches: nothing to replay.");
        return Ok(exit_nothing());
    }
    if options.yes {
        return replay_matching(&target, filter, count, &options).await;
    }
    let types = target.admin().types(&filter, 20).await.map_err(|error| target.explain(error))?;
    print_escaped(format_args!("Would replay {}:\n", counted(count, "dead event")));
    by_type(&types).print();
    let all = if everything && !options.all { "--all --yes" } else { "--yes" };
    print_escaped(format_args!("\nNothing was changed. To replay them, add {all}"));
    Ok(ExitCode::SUCCESS)
}

async fn replay_matching(
    target: &Target,
    mut filter: Filter,
    count: u64,
    options: &DeadReplayAllArgs,
) -> Result<ExitCode> {
    let mut interrupt = Interrupt::listen();
    let details = serde_json::json!({"filter": selection(&filter), "rate": options.rate.map(|rate| rate.0)});
    let audit = target.begin_audit("dead.replay", "dead events", Some(details)).await?;
    let bar = bar(count, "replayed");
    let batch = options.rate.map_or(options.batch, |rate| batch_for(rate, options.batch));
    let began = Instant::now();
    let mut total = 0;
    loop {
        let replayed = target.store.replay(&filter, batch as usize).await;
        let replayed = match replayed {
            Ok(replayed) => replayed,
            Err(error) => {
                audit.finish(&format!("failed: {error}"), Some(total)).await;
                return Err(target.explain(error));
            }
        };
        total += replayed.moved;
        bar.set_position(total);
        // Continues by `seq`, so that events that are dead-lettered again meanwhile are not
        // replayed twice.
        let Some(last) = replayed.last else { break };
        filter.after_seq = Some(last);
        let delay = options.rate.map_or(Duration::ZERO, |rate| pause(rate, total, began.elapsed()));
        if interrupt.wait(delay).await {
            bar.finish_and_clear();
            audit.finish("stopped", Some(total)).await;
            print_escaped(format_args!(
                "Stopped. Replayed {}; to continue: --after {last}",
                counted(total, "event")
            ));
            return Ok(ExitCode::SUCCESS);
        }
    }
    bar.finish_and_clear();
    audit.finish("done", Some(total)).await;
    print_escaped(format_args!("Replayed {}.", counted(total, "event")));
    Ok(if total == 0 { exit_nothing() } else { ExitCode::SUCCESS })
}

/// Batch size for a rate: about a quarter of a second's events, for an even pace.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is positive and fits")]
fn batch_for(rate: Rate, most: u32) -> u32 {
    ((rate.0 / 4.0).ceil() as u32).clamp(1, most)
}

/// Time to wait until `total` events are within the rate.
#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 events are replayed")]
fn pause(rate: Rate, total: u64, elapsed: Duration) -> Duration {
    Duration::from_secs_f64(total as f64 / rate.0).saturating_sub(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_by_small_batches_and_pauses() {
        assert_eq!((batch_for(Rate(100.0), 500), batch_for(Rate(1.0), 500)), (25, 1));
        assert_eq!(batch_for(Rate(100_000.0), 500), 500);
        assert_eq!(pause(Rate(100.0), 25, Duration::ZERO), Duration::from_millis(250));
        assert_eq!(pause(Rate(100.0), 25, Duration::from_secs(1)), Duration::ZERO);
    }
}
