//! `outbox log read`: the events of the log.

use std::process::ExitCode;

use anyhow::Result;
use outbox::{Position, Query};

use super::{event_log, subscriptions};
use crate::database::Tables;
use crate::output::{LogEventView, Output, Table, json};
use crate::target::Target;
use crate::{Usage, eprint_escaped, exit_nothing};

/// Read events of the log, in order of position
///
/// The filter of a topic is in the relay's settings and not in the database, so --topic does not
/// filter: it only sets the first position, which is where its publishers are.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  outbox log read --limit 20                                   the first 20 events
  outbox log read --tag wallet_id=w1 --type DepositMade --type WithdrawalMade
  outbox log read --after 1000 --json --payload | jq .payload
  outbox log read --topic wallet-events --publisher KafkaPublisher --limit 1    the next event of a publisher

Exit codes: 0 events found, 1 failure, 2 wrong usage, 3 nothing found.")]
pub(super) struct LogReadArgs {
    #[command(flatten)]
    tables: Tables,

    /// Only events with this tag; if repeated, with all of them
    #[arg(long = "tag", value_name = "NAME=VALUE")]
    tags: Vec<String>,

    /// Only events of this type; if repeated, of any of them
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,

    /// Only events after this position
    #[arg(long, value_name = "POSITION", conflicts_with = "topic")]
    after: Option<i64>,

    /// Begin at the position of this topic's publisher that is farthest behind
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,

    /// Begin at the position of this publisher of the topic
    #[arg(long, value_name = "NAME", requires = "topic")]
    publisher: Option<String>,

    /// Maximum number of events
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,

    /// With --json, also print payloads. They may contain personal or secret data: mind where the
    /// output goes
    #[arg(long, requires = "json")]
    payload: bool,

    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(options: LogReadArgs) -> Result<ExitCode> {
    let query = query(&options)?;
    let target = options.tables.open().await?;
    let after = match &options.topic {
        None => Position::new(options.after.unwrap_or(0)),
        Some(topic) => match stored_position(&target, topic, options.publisher.as_deref()).await? {
            Some(position) => position,
            None => {
                eprint_escaped(
                    "No such topic and publisher\nhint: `outbox log status` lists topics and publishers",
                );
                return Ok(exit_nothing());
            }
        },
    };
    let limit = options.limit as usize;
    let found = event_log(&target)?.read(&query, after, None, limit).await;
    let found = found.map_err(|error| match error {
        outbox::Error::Event(error) => Usage(error.to_string()).into(),
        error => target.explain(error),
    })?;
    let Some(last) = found.last() else {
        eprint_escaped(format_args!("No event of the log matches after position {after}."));
        return Ok(exit_nothing());
    };
    if options.output.json {
        for event in &found {
            json(&LogEventView::of(event, options.payload))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(LogEventView::HEADERS);
    for event in &found {
        table.row(LogEventView::of(event, false).cells(options.output));
    }
    table.print();
    if found.len() == limit {
        let last = last.as_ref().map_or_else(|(position, _)| *position, outbox::LogEvent::position);
        eprint_escaped(format_args!("There may be more: add --after {last}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn query(options: &LogReadArgs) -> Result<Query, Usage> {
    let mut query = Query::all();
    for tag in &options.tags {
        let (name, value) = tag
            .split_once('=')
            .ok_or_else(|| Usage("--tag needs a name and a value, as in wallet_id=w1".to_owned()))?;
        query = query.and_tag(name, value);
    }
    if !options.types.is_empty() {
        query = query.types(options.types.iter().map(String::as_str));
    }
    Ok(query)
}

/// Position of the publisher, or of the topic's publisher that is farthest behind.
async fn stored_position(target: &Target, topic: &str, publisher: Option<&str>) -> Result<Option<Position>> {
    let (_, subscriptions) = subscriptions(target).await?;
    let matches = subscriptions.iter().filter(|subscription| {
        subscription.topic == topic && publisher.is_none_or(|p| p == subscription.publisher)
    });
    Ok(matches.map(|subscription| Position::new(subscription.position)).min())
}
