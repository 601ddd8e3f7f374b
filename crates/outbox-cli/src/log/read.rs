//! `outbox log read`: the events of the log.

use std::process::ExitCode;

use anyhow::Result;
use outbox::{Position, Query};

use super::{log_of, pairs};
use crate::database::Tables;
use crate::open::Place;
use crate::show::{LogEventView, Output, Table, json};
use crate::{Usage, note, nothing};

/// Read events of the log, by position
///
/// What selects the events of a topic is in the relay's settings, and not in the database: --topic only says where to begin,
/// which is where its publishers stand.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  outbox log read --limit 20                                   the first 20
  outbox log read --tag wallet_id=w1 --type DepositMade --type WithdrawalMade
  outbox log read --after 1000 --json --payload | jq .payload
  outbox log read --topic wallet-events --publisher KafkaPublisher --limit 1    what it is stuck at

Exit codes: 0 some were found, 1 failure, 2 wrong usage, 3 nothing found.")]
pub(super) struct Read {
    #[command(flatten)]
    tables: Tables,

    /// Only events with this tag; several: with all of them
    #[arg(long = "tag", value_name = "NAME=VALUE")]
    tags: Vec<String>,

    /// Only events of this type; several: of any of them
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,

    /// Only events after this position
    #[arg(long, value_name = "POSITION", conflicts_with = "topic")]
    after: Option<i64>,

    /// Begin where this topic stands: at the publisher that is farthest behind
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,

    /// Begin where this publisher of the topic stands
    #[arg(long, value_name = "NAME", requires = "topic")]
    publisher: Option<String>,

    /// How many to show at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,

    /// With --json, print payloads too. They may hold what is nobody's business: mind where this is written
    #[arg(long, requires = "json")]
    payload: bool,

    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(options: Read) -> Result<ExitCode> {
    let query = query(&options)?;
    let place = options.tables.open().await?;
    let after = match &options.topic {
        None => Position::new(options.after.unwrap_or(0)),
        Some(topic) => match standing(&place, topic, options.publisher.as_deref()).await? {
            Some(position) => position,
            None => {
                note("No such topic and publisher\nhint: `outbox log status` lists those that there are");
                return Ok(nothing());
            }
        },
    };
    let limit = options.limit as usize;
    let found = log_of(&place)?.read(&query, after, None, limit).await;
    let found = found.map_err(|error| match error {
        outbox::Error::Event(error) => Usage(error.to_string()).into(),
        error => place.explain(error),
    })?;
    let Some(last) = found.last() else {
        note(format_args!("No event of the log matches after position {after}."));
        return Ok(nothing());
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
        note(format_args!("There may be more: add --after {last}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn query(options: &Read) -> Result<Query, Usage> {
    let mut query = Query::all();
    for tag in &options.tags {
        let (name, value) = tag
            .split_once('=')
            .ok_or_else(|| Usage("--tag is a name and a value, as in wallet_id=w1".to_owned()))?;
        query = query.and_tag(name, value);
    }
    if !options.types.is_empty() {
        query = query.types(options.types.iter().map(String::as_str));
    }
    Ok(query)
}

/// Where the publisher stands, or the one of the topic that is farthest behind.
async fn standing(place: &Place, topic: &str, publisher: Option<&str>) -> Result<Option<Position>> {
    let (_, pairs) = pairs(place).await?;
    let matches =
        pairs.iter().filter(|pair| pair.topic == topic && publisher.is_none_or(|p| p == pair.publisher));
    Ok(matches.map(|pair| Position::new(pair.position)).min())
}
