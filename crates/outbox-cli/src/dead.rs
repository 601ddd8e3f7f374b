//! `outbox dead`: events that were given up, and bringing them back.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Subcommand};
use outbox::escape::Escaped;
use outbox::store::Filter;

use crate::age::Rate;
use crate::audit::selection;
use crate::database::Tables;
use crate::open::Place;
use crate::progress::{Interrupt, bar};
use crate::show::{EventView, Output, Table, counted, json, number};
use crate::which::{Page, Which, ids};
use crate::{Usage, events, note, nothing, say};

/// Look at events that were given up, and replay them
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  outbox dead list --type order.placed
  outbox dead count --newer-than 1h
  outbox dead replay 01JD3V7Q0Z6W4T0M1S2K8N5R9X
  outbox dead replay-all --type order.placed                     what it would replay
  outbox dead replay-all --type order.placed --rate 50/s --yes   replays it

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.";

#[derive(Subcommand)]
enum Action {
    List(List),
    Count(Count),
    Show(Show),
    Replay(Replay),
    ReplayAll(ReplayAll),
}

/// List dead events, oldest first, with what they died of
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox dead list
  outbox dead list --newer-than 1h --json | jq -r .last_error | sort | uniq -c

Exit codes: 0 some were found, 1 failure, 2 wrong usage, 3 nothing found.")]
struct List {
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    output: Output,
}

/// Count dead events
#[derive(Args)]
#[command(after_help = "\
Examples:
  test \"$(outbox dead count)\" -eq 0 || echo 'somebody should look'
  outbox dead count --by-type

Exit codes: 0 counted, also if there are none, 1 failure, 2 wrong usage.")]
struct Count {
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    which: Which,

    /// For each event type, the most frequent first
    #[arg(long)]
    by_type: bool,

    /// Print JSON for programs: one object a line
    #[arg(long)]
    json: bool,
}

/// Show everything about one dead event, except its payload
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox dead show 01JD3V7Q0Z6W4T0M1S2K8N5R9X

Exit codes: 0 found, 1 failure, 2 wrong usage, 3 no such event.")]
struct Show {
    #[command(flatten)]
    one: events::One,
}

/// Make dead events new again, with no attempts behind them
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox dead replay 01JD3V7Q0Z6W4T0M1S2K8N5R9X 01JD3V7Q10F5S8D3C7B2A9Z4Y6

Exit codes: 0 all were replayed, 1 failure, 2 wrong usage, 3 some were not: they are not dead, or not there.")]
struct Replay {
    /// The events' ids
    #[arg(value_name = "EVENT_ID", required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    tables: Tables,
}

/// Make all dead events of a selection new again
///
/// Without --yes it only says what it would do. Each batch is a transaction of its own, oldest first; one that dies again
/// while this runs is not replayed twice. Ctrl-C stops between two batches, and what is left can be replayed later.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox dead replay-all --type order.placed              what it would do
  outbox dead replay-all --type order.placed --yes        does it
  outbox dead replay-all --all --rate 100/s --yes         everything, gently

Exit codes: 0 replayed, or would be, 1 failure, 2 wrong usage, 3 nothing to replay.")]
struct ReplayAll {
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    which: Which,

    /// Every dead event: needed with --yes if nothing is selected
    #[arg(long, help_heading = "Selection")]
    all: bool,

    /// Only those after this SEQ: to go on where an earlier run was stopped
    #[arg(long, value_name = "SEQ", help_heading = "Selection")]
    after: Option<i64>,

    /// Replay. Without this, only say what would be replayed
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,

    /// Only say what would be replayed; the same as leaving --yes out
    #[arg(long)]
    dry_run: bool,

    /// How many events to replay in a given time at most, such as 100/s or 6000/m
    #[arg(long, value_name = "N/s")]
    rate: Option<Rate>,

    /// How many events a transaction replays at most
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
}

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    match options.action {
        Action::List(options) => list(options).await,
        Action::Count(options) => count(options).await,
        Action::Show(Show { one }) => events::show(one).await,
        Action::Replay(options) => replay(options).await,
        Action::ReplayAll(options) => replay_all(options).await,
    }
}

async fn list(options: List) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let filter = Filter { after_seq: options.page.after, ..options.which.dead() };
    let found = place.admin().list(&filter, options.page.limit()).await;
    let found = found.map_err(|error| place.explain(error))?;
    let Some(last) = found.last() else {
        note("No dead event matches.");
        return Ok(nothing());
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

async fn count(options: Count) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let filter = options.which.dead();
    if options.by_type {
        let types = place.admin().types(&filter, 10_000).await.map_err(|error| place.explain(error))?;
        if options.json {
            for (event_type, count) in &types {
                json(&serde_json::json!({ "event_type": event_type, "count": count }))?;
            }
        } else {
            by_type(&types).print();
        }
        return Ok(ExitCode::SUCCESS);
    }
    let count = place.store.count(&filter).await.map_err(|error| place.explain(error))?;
    if options.json {
        json(&serde_json::json!({ "count": count }))?;
    } else {
        say(count);
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

async fn replay(options: Replay) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let mut code = ExitCode::SUCCESS;
    for id in ids(&options.ids) {
        let (admin, shown) = (place.admin(), Escaped(&id));
        if place.change_one("event.replay", &id, "is not dead", admin.replay(&id)).await? {
            say(format_args!("{shown}: new again"));
            continue;
        }
        code = nothing();
        let explained = admin.explain(&id).await.map_err(|error| place.explain(error))?;
        note(format_args!("{shown}: not replayed, because it is not dead. {explained}"));
    }
    Ok(code)
}

async fn replay_all(options: ReplayAll) -> Result<ExitCode> {
    let everything = options.which.is_everything();
    if options.yes && everything && !options.all {
        return Err(Usage(
            "this would replay every dead event: select some, as with --type, or say --all".to_owned(),
        )
        .into());
    }
    let place = options.tables.open().await?;
    let filter = Filter { after_seq: options.after, ..options.which.dead() };
    let count = place.store.count(&filter).await.map_err(|error| place.explain(error))?;
    if count == 0 {
        note("No dead event matches: nothing to replay.");
        return Ok(nothing());
    }
    if options.yes {
        return replay_matching(&place, filter, count, &options).await;
    }
    let types = place.admin().types(&filter, 20).await.map_err(|error| place.explain(error))?;
    say(format_args!("Would replay {}:\n", counted(count, "dead event")));
    by_type(&types).print();
    let all = if everything && !options.all { "--all --yes" } else { "--yes" };
    say(format_args!("\nNothing was changed. To replay them, add {all}"));
    Ok(ExitCode::SUCCESS)
}

async fn replay_matching(
    place: &Place,
    mut filter: Filter,
    count: u64,
    options: &ReplayAll,
) -> Result<ExitCode> {
    let mut interrupt = Interrupt::listen();
    let details = serde_json::json!({"filter": selection(&filter), "rate": options.rate.map(|rate| rate.0)});
    let audit = place.begin_audit("dead.replay", "dead events", Some(details)).await?;
    let bar = bar(count, "replayed");
    let batch = options.rate.map_or(options.batch, |rate| batch_for(rate, options.batch));
    let began = Instant::now();
    let mut total = 0;
    loop {
        let replayed = place.store.replay(&filter, batch as usize).await;
        let replayed = match replayed {
            Ok(replayed) => replayed,
            Err(error) => {
                audit.finish(&format!("failed: {error}"), Some(total)).await;
                return Err(place.explain(error));
            }
        };
        total += replayed.moved;
        bar.set_position(total);
        // By place in the table: what dies again stays behind.
        let Some(last) = replayed.last else { break };
        filter.after_seq = Some(last);
        let rest = options.rate.map_or(Duration::ZERO, |rate| pause(rate, total, began.elapsed()));
        if interrupt.within(rest).await {
            bar.finish_and_clear();
            audit.finish("stopped", Some(total)).await;
            say(format_args!("Stopped. Replayed {}; to go on: --after {last}", counted(total, "event")));
            return Ok(ExitCode::SUCCESS);
        }
    }
    bar.finish_and_clear();
    audit.finish("done", Some(total)).await;
    say(format_args!("Replayed {}.", counted(total, "event")));
    Ok(if total == 0 { nothing() } else { ExitCode::SUCCESS })
}

/// About a quarter of a second's worth at a time, so that the pace is even.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is positive and fits")]
fn batch_for(rate: Rate, most: u32) -> u32 {
    ((rate.0 / 4.0).ceil() as u32).clamp(1, most)
}

/// How long to wait until so many are not too many for the time that has passed.
#[expect(clippy::cast_precision_loss, reason = "nobody replays 2^52 events")]
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
