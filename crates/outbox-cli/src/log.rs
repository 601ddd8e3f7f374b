//! `outbox log`: status of the event log and its publishers; pauses, resumes and resets publishers;
//! reads the log.

mod read;
mod unreadable;

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use outbox::escape::Escaped;
use outbox::store::{LogStore, OpenAppend};
use outbox::{Position, SubscriptionState};
use serde::Serialize;

use crate::database::Tables;
use crate::output::{Output, Table, counted, dash, json, number, short, status};
use crate::target::Target;
use crate::time_args::moment;
use crate::{Usage, eprint_escaped, exit_nothing, print_escaped};

/// Inspect the event log and its publishers; pause, resume and reset publishers
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogArgs {
    #[command(subcommand)]
    command: LogCommand,
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
enum LogCommand {
    Status(LogStatusArgs),
    Lag(LogStatusArgs),
    Pause(LogPauseArgs),
    Resume(LogPauseArgs),
    Reset(LogResetArgs),
    Read(read::LogReadArgs),
    Unreadable(unreadable::LogUnreadableArgs),
}

/// Show status, position, errors and leader of every topic and publisher
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox log status
  outbox log lag --publisher KafkaPublisher --json

Exit codes: 0 found, 1 failure, 2 wrong usage, 3 no topic was ever published.")]
struct LogStatusArgs {
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

/// Pause or resume a publisher, in all topics or in one
///
/// A pause lets the batch that is being published finish. A resume continues after it and resets
/// the error count, also after FAILED. Relays notice within seconds.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox log pause KafkaPublisher
  outbox log pause KafkaPublisher --topic wallet-events
  outbox log resume KafkaPublisher

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 no such publisher.")]
struct LogPauseArgs {
    /// The publisher's name
    #[arg(value_name = "PUBLISHER")]
    publisher: String,

    #[command(flatten)]
    tables: Tables,

    /// Only in this topic, instead of all topics
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,
}

/// Set a publisher of a topic to a position: events after it are published, again or for the first
/// time
///
/// Resets the error count; a pause stays. A relay that is publishing right now can no longer move
/// the position.
#[derive(Args)]
#[command(after_help = "\
Examples:
  outbox log reset wallet-events KafkaPublisher --to start                  the whole log again
  outbox log reset wallet-events KafkaPublisher --to end                    only new events
  outbox log reset wallet-events KafkaPublisher --to 1234                   events after position 1234
  outbox log reset wallet-events KafkaPublisher --to 2026-11-16T08:00:00Z   events stored since then
  outbox log reset wallet-events KafkaPublisher --to 2h                     events of the last 2 hours

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 no such topic and publisher.")]
struct LogResetArgs {
    /// The topic's name
    #[arg(value_name = "TOPIC")]
    topic: String,

    /// The publisher's name
    #[arg(value_name = "PUBLISHER")]
    publisher: String,

    /// start, end, a position, a time such as 2026-11-16T08:00:00Z, or an age such as 2h
    #[arg(long, value_name = "WHERE")]
    to: String,

    #[command(flatten)]
    tables: Tables,
}

/// JSON form of a subscription: a topic and one of its publishers.
#[derive(Serialize)]
pub(crate) struct SubscriptionView {
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

/// JSON form of an open transaction that a subscription waits for.
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

impl SubscriptionView {
    fn of(subscription: &SubscriptionState, head: Position, waits_for: Option<&OpenAppend>) -> Self {
        Self {
            waits_for: waits_for.map(OpenAppendView::of),
            topic: subscription.id.topic().to_owned(),
            publisher: subscription.id.publisher().to_owned(),
            status: subscription.status.as_str(),
            position: subscription.position.get(),
            head: head.get(),
            behind: u64::try_from(head.get() - subscription.position.get()).unwrap_or(0),
            error_count: subscription.error_count,
            last_error: subscription.last_error.clone(),
            leader: subscription.leader.as_ref().filter(|_| !subscription.is_free()).map(ToString::to_string),
            updated_at: subscription.updated_at,
        }
    }
}

/// The event log of the target.
pub(crate) fn event_log(target: &Target) -> Result<&dyn LogStore> {
    target.store.log().ok_or_else(|| anyhow!("{} has no event log", target.url))
}

/// Reads the last position of the log, and all subscriptions.
pub(crate) async fn subscriptions(target: &Target) -> Result<(Position, Vec<SubscriptionView>)> {
    let log = event_log(target)?;
    let subscriptions = log.subscriptions().await.map_err(|error| target.explain(error))?;
    // The head is read last: if a subscription moves meanwhile, its lag is shown too large, not too
    // small.
    let head = log.head().await.map_err(|error| target.explain(error))?;
    let is_behind = subscriptions.iter().any(|subscription| subscription.position < head);
    let waiting =
        if is_behind { log.waiting().await.map_err(|error| target.explain(error))? } else { Vec::new() };
    let waits_for = |subscription: &SubscriptionState| {
        waiting.iter().find(|(id, _)| *id == subscription.id).map(|(_, open)| open)
    };
    Ok((
        head,
        subscriptions
            .iter()
            .map(|subscription| SubscriptionView::of(subscription, head, waits_for(subscription)))
            .collect(),
    ))
}

/// One line for each subscription that waits for an open transaction.
pub(crate) fn waiting_lines(subscriptions: &[SubscriptionView], output: Output) -> Vec<String> {
    let mut lines = Vec::new();
    for (subscription, open) in
        subscriptions.iter().filter_map(|subscription| Some((subscription, subscription.waits_for.as_ref()?)))
    {
        let since = open.since.map_or_else(
            || "start time not visible to this role".to_owned(),
            |since| format!("since {}", output.time(since)),
        );
        lines.push(format!(
            "{}/{} waits at position {}: {} has appended to the log and not ended its transaction ({since}).",
            Escaped(&subscription.topic),
            Escaped(&subscription.publisher),
            subscription.position,
            open.text
        ));
    }
    lines
}

/// Table of subscriptions, with their errors.
pub(crate) fn table(subscriptions: &[SubscriptionView], output: Output) -> Table {
    let headers =
        ["TOPIC", "PUBLISHER", "STATUS", "#POSITION", "#BEHIND", "MOVED", "LEADER", "#ERRORS", "LAST ERROR"];
    let mut table = Table::new(headers);
    for subscription in subscriptions {
        table.row([
            short(&subscription.topic, 48).into(),
            short(&subscription.publisher, 48).into(),
            status(subscription.status),
            subscription.position.into(),
            number(subscription.behind).into(),
            output.time(subscription.updated_at).into(),
            subscription.leader.as_deref().map_or_else(dash, |leader| short(leader, 40)).into(),
            subscription.error_count.into(),
            subscription.last_error.as_deref().map_or_else(dash, |error| short(error, 60)).into(),
        ]);
    }
    table
}

pub(crate) async fn run(options: LogArgs) -> Result<ExitCode> {
    match options.command {
        LogCommand::Status(options) => show_status(options, false).await,
        LogCommand::Lag(options) => show_status(options, true).await,
        LogCommand::Pause(options) => set_paused(options, true).await,
        LogCommand::Resume(options) => set_paused(options, false).await,
        LogCommand::Reset(options) => reset(options).await,
        LogCommand::Read(options) => read::run(options).await,
        LogCommand::Unreadable(options) => unreadable::run(options).await,
    }
}

async fn show_status(options: LogStatusArgs, lag_only: bool) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let (head, mut subscriptions) = subscriptions(&target).await?;
    let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
    subscriptions.retain(|subscription| {
        is(&options.topic, &subscription.topic) && is(&options.publisher, &subscription.publisher)
    });
    if subscriptions.is_empty() {
        eprint_escaped("No topic and publisher matches. Relays create a row for each when they start.");
        return Ok(exit_nothing());
    }
    if options.output.json {
        for subscription in &subscriptions {
            json(subscription)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if lag_only {
        let mut table = Table::new(["TOPIC", "PUBLISHER", "STATUS", "#POSITION", "#HEAD", "#BEHIND"]);
        for subscription in &subscriptions {
            table.row([
                short(&subscription.topic, 48).into(),
                short(&subscription.publisher, 48).into(),
                status(subscription.status),
                subscription.position.into(),
                subscription.head.into(),
                number(subscription.behind).into(),
            ]);
        }
        table.print();
    } else {
        print_escaped(format_args!("The log ends at position {head}.\n"));
        table(&subscriptions, options.output).print();
        for line in waiting_lines(&subscriptions, options.output) {
            eprint_escaped(format_args!("\n{line}"));
        }
        if let Some(first) = unreadable::of(&target, 1).await?.first() {
            eprint_escaped(format_args!(
                "\nPublishers skipped unreadable events, the last one at position {}: `outbox log unreadable` lists them.",
                first.position
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn set_paused(options: LogPauseArgs, pause: bool) -> Result<ExitCode> {
    let target = options.tables.open().await?;
    let (admin, publisher) = (target.log_admin(), options.publisher.as_str());
    let action = if pause { "publisher.pause" } else { "publisher.resume" };
    let audit_target =
        options.topic.as_ref().map_or_else(|| publisher.to_owned(), |topic| format!("{topic}/{publisher}"));
    let audit = target.begin_audit(action, audit_target, None).await?;
    let change = async {
        let subscriptions = match (pause, options.topic.as_deref()) {
            (true, None) => admin.pause(publisher).await?,
            (true, Some(topic)) => admin.pause_in(topic, publisher).await.map(|()| 1)?,
            (false, None) => admin.resume(publisher).await?,
            (false, Some(topic)) => admin.resume_in(topic, publisher).await.map(|()| 1)?,
        };
        Ok((subscriptions, ()))
    };
    match audit.carry_out(change, outbox::Error::to_string).await {
        Ok((subscriptions, ())) => {
            let (status, publisher) = (if pause { "PAUSED" } else { "ACTIVE" }, Escaped(publisher));
            print_escaped(format_args!("{publisher} is {status} in {}.", counted(subscriptions, "topic")));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => not_found(&target, error),
    }
}

async fn reset(options: LogResetArgs) -> Result<ExitCode> {
    let to = ResetTarget::parse(&options.to)?;
    let target = options.tables.open().await?;
    let (admin, topic, publisher) = (target.log_admin(), options.topic.as_str(), options.publisher.as_str());
    let before = match admin.subscription(topic, publisher).await {
        Ok(subscription) => subscription.position,
        Err(error) => return not_found(&target, error),
    };
    let log = event_log(&target)?;
    let position = match to {
        ResetTarget::Position(position) => position,
        ResetTarget::End => log.head().await.map_err(|error| target.explain(error))?,
        ResetTarget::Time(at) => log.position_at(at).await.map_err(|error| target.explain(error))?,
    };
    let details = serde_json::json!({"to": options.to, "position": position.get(), "before": before.get()});
    let audit = target.begin_audit("publisher.reset", format!("{topic}/{publisher}"), Some(details)).await?;
    let change = async { admin.reset(topic, publisher, position).await.map(|()| (1, ())) };
    if let Err(error) = audit.carry_out(change, outbox::Error::to_string).await {
        return not_found(&target, error);
    }
    let moved = position.get().abs_diff(before.get());
    let what = match position.cmp(&before) {
        std::cmp::Ordering::Less => format!("{} will be published again", counted(moved, "position")),
        std::cmp::Ordering::Equal => "no change".to_owned(),
        std::cmp::Ordering::Greater => format!("{} will not be published", counted(moved, "position")),
    };
    let (topic, publisher) = (Escaped(topic), Escaped(publisher));
    print_escaped(format_args!(
        "{topic}/{publisher} continues after position {position} (was {before}): {what}."
    ));
    Ok(ExitCode::SUCCESS)
}

/// Maps an unknown subscription to exit code 3; every other error is a failure.
fn not_found(target: &Target, error: outbox::Error) -> Result<ExitCode> {
    match error {
        outbox::Error::UnknownSubscription { .. } => {
            eprint_escaped(format_args!("{error}\nhint: `outbox log status` lists topics and publishers"));
            Ok(exit_nothing())
        }
        error => Err(target.explain(error)),
    }
}

/// Value of `--to`.
#[derive(Debug, PartialEq)]
enum ResetTarget {
    Position(Position),
    End,
    Time(DateTime<Utc>),
}

impl ResetTarget {
    fn parse(text: &str) -> Result<Self> {
        if let Ok(position) = text.parse::<i64>() {
            let position = Some(position).filter(|position| *position >= 0).map(Position::new);
            return position
                .map(ResetTarget::Position)
                .context(Usage("--to: positions start at 0".to_owned()));
        }
        match text {
            "start" => Ok(ResetTarget::Position(Position::START)),
            "end" => Ok(ResetTarget::End),
            _ => moment(text, Utc::now()).map(ResetTarget::Time).ok_or_else(|| {
                Usage(format!(
                    "--to is {text:?}: use start, end, a position, a time such as 2026-11-16T08:00:00Z, \
                     or an age such as 2h"
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
    fn a_subscription_is_reset_to_a_position_or_a_time() {
        assert_eq!(ResetTarget::parse("start").unwrap(), ResetTarget::Position(Position::START));
        assert_eq!(ResetTarget::parse("end").unwrap(), ResetTarget::End);
        assert_eq!(ResetTarget::parse("1234").unwrap(), ResetTarget::Position(Position::new(1_234)));
        assert!(matches!(ResetTarget::parse("2026-11-16T08:00:00Z").unwrap(), ResetTarget::Time(_)));
        assert!(matches!(ResetTarget::parse("2h").unwrap(), ResetTarget::Time(_)));
        for wrong in ["", "-1", "middle", "2026-11-16"] {
            assert!(ResetTarget::parse(wrong).unwrap_err().downcast_ref::<Usage>().is_some(), "{wrong}");
        }
    }
}
