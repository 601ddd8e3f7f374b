//! `outbox log`: the event log and its publishers: where they stand, pausing, resuming, setting them elsewhere, reading.

mod read;
mod unreadable;

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use outbox::escape::Escaped;
use outbox::store::{LogStore, OpenAppend};
use outbox::{PairState, Position};
use serde::Serialize;

use crate::age::moment;
use crate::database::Tables;
use crate::open::Place;
use crate::show::{Output, Table, counted, dash, json, number, short, status};
use crate::{Usage, note, nothing, say};

/// Look at the event log and its publishers; pause, resume and reset them
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  outbox log status
  outbox log lag --json | jq 'select(.behind > 1000)'
  outbox log pause KafkaPublisher
  outbox log resume KafkaPublisher --topic wallet-events
  outbox log reset wallet-events KafkaPublisher --to 2026-11-16T08:00:00Z
  outbox log read --tag wallet_id=w1 --after 1000
  outbox log unreadable --json

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.";

#[derive(Subcommand)]
enum Action {
    Status(Look),
    Lag(Look),
    Pause(Set),
    Resume(Set),
    Reset(Reset),
    Read(read::Read),
    Unreadable(unreadable::Options),
}

/// Where every topic and publisher stands: status, position, errors, leader
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox log status
  outbox log lag --publisher KafkaPublisher --json

Exit codes: 0 some were found, 1 failure, 2 wrong usage, 3 no topic was ever published.")]
struct Look {
    #[command(flatten)]
    tables: Tables,

    /// Only this topic
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,

    /// Only this publisher
    #[arg(long, value_name = "NAME")]
    publisher: Option<String>,

    #[command(flatten)]
    output: Output,
}

/// Whether a publisher is given events, in all topics or in one
///
/// A pause lets what is being published right now end, and nothing more. Resuming goes on from there, with no errors behind
/// it: also after FAILED. Relays notice within seconds.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox log pause KafkaPublisher
  outbox log pause KafkaPublisher --topic wallet-events
  outbox log resume KafkaPublisher

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 no such publisher.")]
struct Set {
    /// The publisher's name
    #[arg(value_name = "PUBLISHER")]
    publisher: String,

    #[command(flatten)]
    tables: Tables,

    /// Only in this topic, instead of in all
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,
}

/// Set a publisher of a topic to a position: what comes after it is published, again or for the first time
///
/// Errors are forgotten; a pause stays. Whoever publishes right now can no longer move it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox log reset wallet-events KafkaPublisher --to start                  everything again
  outbox log reset wallet-events KafkaPublisher --to end                    only what is new
  outbox log reset wallet-events KafkaPublisher --to 1234                   what comes after position 1234
  outbox log reset wallet-events KafkaPublisher --to 2026-11-16T08:00:00Z   what was stored since
  outbox log reset wallet-events KafkaPublisher --to 2h                     what was stored in the last 2 hours

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 no such topic and publisher.")]
struct Reset {
    /// The topic's name
    #[arg(value_name = "TOPIC")]
    topic: String,

    /// The publisher's name
    #[arg(value_name = "PUBLISHER")]
    publisher: String,

    /// start, end, a position, a time as 2026-11-16T08:00:00Z, or how long ago as 2h
    #[arg(long, value_name = "WHERE")]
    to: String,

    #[command(flatten)]
    tables: Tables,
}

/// A pair for programs.
#[derive(Serialize)]
pub(crate) struct PairView {
    topic: String,
    publisher: String,
    status: &'static str,
    position: i64,
    head: i64,
    pub(crate) behind: u64,
    error_count: u32,
    last_error: Option<String>,
    leader: Option<String>,
    updated_at: DateTime<Utc>,
    waits_for: Option<OpenAppendView>,
}

/// An open transaction that a pair waits for, for programs.
#[derive(Serialize)]
pub(crate) struct OpenAppendView {
    backend: Option<i64>,
    prepared: Option<String>,
    since: Option<DateTime<Utc>>,
    user: Option<String>,
    application: Option<String>,
    #[serde(skip)]
    text: String,
}

impl OpenAppendView {
    fn of(open: &OpenAppend) -> Self {
        Self {
            backend: open.backend,
            prepared: open.prepared.clone(),
            since: open.since,
            user: open.user.clone(),
            application: open.application.clone(),
            text: open.to_string(),
        }
    }
}

impl PairView {
    fn of(pair: &PairState, head: Position, waits_for: Option<&OpenAppend>) -> Self {
        Self {
            waits_for: waits_for.map(OpenAppendView::of),
            topic: pair.id.topic().to_owned(),
            publisher: pair.id.publisher().to_owned(),
            status: pair.status.as_str(),
            position: pair.position.get(),
            head: head.get(),
            behind: u64::try_from(head.get() - pair.position.get()).unwrap_or(0),
            error_count: pair.error_count,
            last_error: pair.last_error.clone(),
            leader: pair.leader.as_ref().filter(|_| !pair.is_free()).map(ToString::to_string),
            updated_at: pair.updated_at,
        }
    }
}

/// The log of a place.
pub(crate) fn log_of(place: &Place) -> Result<&dyn LogStore> {
    place.store.log().ok_or_else(|| anyhow!("{} has no event log", place.url))
}

/// How far the log goes, and where all pairs stand.
pub(crate) async fn pairs(place: &Place) -> Result<(Position, Vec<PairView>)> {
    let log = log_of(place)?;
    let pairs = log.pairs().await.map_err(|error| place.explain(error))?;
    // The head last: a pair that moves meanwhile shows more than it has, not less.
    let head = log.head().await.map_err(|error| place.explain(error))?;
    let is_behind = pairs.iter().any(|pair| pair.position < head);
    let waiting =
        if is_behind { log.waiting().await.map_err(|error| place.explain(error))? } else { Vec::new() };
    let waits_for = |pair: &PairState| waiting.iter().find(|(id, _)| *id == pair.id).map(|(_, open)| open);
    Ok((head, pairs.iter().map(|pair| PairView::of(pair, head, waits_for(pair))).collect()))
}

/// A line for each pair that waits for an open transaction.
pub(crate) fn waiting(pairs: &[PairView], output: Output) -> Vec<String> {
    let mut lines = Vec::new();
    for (pair, open) in pairs.iter().filter_map(|pair| Some((pair, pair.waits_for.as_ref()?))) {
        let since = open.since.map_or_else(
            || "this role may not see since when".to_owned(),
            |since| format!("since {}", output.time(since)),
        );
        lines.push(format!(
            "{}/{} waits behind position {}: {} has appended to the log and not ended its transaction, {since}.",
            Escaped(&pair.topic),
            Escaped(&pair.publisher),
            pair.position,
            open.text
        ));
    }
    lines
}

/// A table of pairs, with what is wrong with them.
pub(crate) fn table(pairs: &[PairView], output: Output) -> Table {
    let headers =
        ["TOPIC", "PUBLISHER", "STATUS", "#POSITION", "#BEHIND", "MOVED", "LEADER", "#ERRORS", "LAST ERROR"];
    let mut table = Table::new(headers);
    for pair in pairs {
        table.row([
            short(&pair.topic, 48).into(),
            short(&pair.publisher, 48).into(),
            status(pair.status),
            pair.position.into(),
            number(pair.behind).into(),
            output.time(pair.updated_at).into(),
            pair.leader.as_deref().map_or_else(dash, |leader| short(leader, 40)).into(),
            pair.error_count.into(),
            pair.last_error.as_deref().map_or_else(dash, |error| short(error, 60)).into(),
        ]);
    }
    table
}

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    match options.action {
        Action::Status(options) => look(options, false).await,
        Action::Lag(options) => look(options, true).await,
        Action::Pause(options) => set(options, true).await,
        Action::Resume(options) => set(options, false).await,
        Action::Reset(options) => reset(options).await,
        Action::Read(options) => read::run(options).await,
        Action::Unreadable(options) => unreadable::run(options).await,
    }
}

async fn look(options: Look, lag_only: bool) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let (head, mut pairs) = pairs(&place).await?;
    let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
    pairs.retain(|pair| is(&options.topic, &pair.topic) && is(&options.publisher, &pair.publisher));
    if pairs.is_empty() {
        note("No topic and publisher matches: there is a row for each that a relay ever started.");
        return Ok(nothing());
    }
    if options.output.json {
        for pair in &pairs {
            json(pair)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if lag_only {
        let mut table = Table::new(["TOPIC", "PUBLISHER", "STATUS", "#POSITION", "#HEAD", "#BEHIND"]);
        for pair in &pairs {
            table.row([
                short(&pair.topic, 48).into(),
                short(&pair.publisher, 48).into(),
                status(pair.status),
                pair.position.into(),
                pair.head.into(),
                number(pair.behind).into(),
            ]);
        }
        table.print();
    } else {
        say(format_args!("The log ends at position {head}.\n"));
        table(&pairs, options.output).print();
        for line in waiting(&pairs, options.output) {
            note(format_args!("\n{line}"));
        }
        if let Some(first) = unreadable::of(&place, 1).await?.first() {
            note(format_args!(
                "\nPublishers passed over events that cannot be read, the last at position {}: `outbox log unreadable` lists them.",
                first.position
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn set(options: Set, pause: bool) -> Result<ExitCode> {
    let place = options.tables.open().await?;
    let (admin, publisher) = (place.log_admin(), options.publisher.as_str());
    let action = if pause { "publisher.pause" } else { "publisher.resume" };
    let target =
        options.topic.as_ref().map_or_else(|| publisher.to_owned(), |topic| format!("{topic}/{publisher}"));
    let audit = place.begin_audit(action, target, None).await?;
    let change = async {
        let pairs = match (pause, options.topic.as_deref()) {
            (true, None) => admin.pause(publisher).await?,
            (true, Some(topic)) => admin.pause_in(topic, publisher).await.map(|()| 1)?,
            (false, None) => admin.resume(publisher).await?,
            (false, Some(topic)) => admin.resume_in(topic, publisher).await.map(|()| 1)?,
        };
        Ok((pairs, ()))
    };
    match audit.carry_out(change, outbox::Error::to_string).await {
        Ok((pairs, ())) => {
            let (word, publisher) = (if pause { "PAUSED" } else { "ACTIVE" }, Escaped(publisher));
            say(format_args!("{publisher} is {word} in {}.", counted(pairs, "topic")));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => unknown(&place, error),
    }
}

async fn reset(options: Reset) -> Result<ExitCode> {
    let to = To::parse(&options.to)?;
    let place = options.tables.open().await?;
    let (admin, topic, publisher) = (place.log_admin(), options.topic.as_str(), options.publisher.as_str());
    let before = match admin.pair(topic, publisher).await {
        Ok(pair) => pair.position,
        Err(error) => return unknown(&place, error),
    };
    let log = log_of(&place)?;
    let position = match to {
        To::Position(position) => position,
        To::End => log.head().await.map_err(|error| place.explain(error))?,
        To::Time(at) => log.position_at(at).await.map_err(|error| place.explain(error))?,
    };
    let details = serde_json::json!({"to": options.to, "position": position.get(), "before": before.get()});
    let audit = place.begin_audit("publisher.reset", format!("{topic}/{publisher}"), Some(details)).await?;
    let change = async { admin.reset(topic, publisher, position).await.map(|()| (1, ())) };
    if let Err(error) = audit.carry_out(change, outbox::Error::to_string).await {
        return unknown(&place, error);
    }
    let moved = position.get().abs_diff(before.get());
    let what = match position.cmp(&before) {
        std::cmp::Ordering::Less => format!("{} will be published again", counted(moved, "position")),
        std::cmp::Ordering::Equal => "it stood there already".to_owned(),
        std::cmp::Ordering::Greater => format!("{} will not be published", counted(moved, "position")),
    };
    let (topic, publisher) = (Escaped(topic), Escaped(publisher));
    say(format_args!("{topic}/{publisher} goes on after position {position} (it was at {before}): {what}."));
    Ok(ExitCode::SUCCESS)
}

/// A pair that nobody knows is nothing found; everything else is a failure.
fn unknown(place: &Place, error: outbox::Error) -> Result<ExitCode> {
    match error {
        outbox::Error::UnknownPair { .. } => {
            note(format_args!("{error}\nhint: `outbox log status` lists those that there are"));
            Ok(nothing())
        }
        error => Err(place.explain(error)),
    }
}

/// Where to set a pair.
#[derive(Debug, PartialEq)]
enum To {
    Position(Position),
    End,
    Time(DateTime<Utc>),
}

impl To {
    fn parse(text: &str) -> Result<Self> {
        if let Ok(position) = text.parse::<i64>() {
            let position = Some(position).filter(|position| *position >= 0).map(Position::new);
            return position.map(To::Position).context(Usage("--to: positions start at 0".to_owned()));
        }
        match text {
            "start" => Ok(To::Position(Position::START)),
            "end" => Ok(To::End),
            _ => moment(text, Utc::now()).map(To::Time).ok_or_else(|| {
                Usage(format!(
                    "--to is {text:?}: use start, end, a position, a time such as 2026-11-16T08:00:00Z, \
                     or how long ago, such as 2h"
                ))
                .into()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_set_to_a_position_or_a_time() {
        assert_eq!(To::parse("start").unwrap(), To::Position(Position::START));
        assert_eq!(To::parse("end").unwrap(), To::End);
        assert_eq!(To::parse("1234").unwrap(), To::Position(Position::new(1_234)));
        assert!(matches!(To::parse("2026-11-16T08:00:00Z").unwrap(), To::Time(_)));
        assert!(matches!(To::parse("2h").unwrap(), To::Time(_)));
        for wrong in ["", "-1", "middle", "2026-11-16"] {
            assert!(To::parse(wrong).unwrap_err().downcast_ref::<Usage>().is_some(), "{wrong}");
        }
    }
}
