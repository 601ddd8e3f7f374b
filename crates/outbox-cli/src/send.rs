//! `outbox send`: writes one event.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use outbox::{Event, GLOBAL};

use crate::database::Tables;
use crate::time_args::Age;
use crate::{Usage, eprint_escaped, exit_nothing, print_escaped};

/// Write one event, and print its id
///
/// For scripts, and to try out a relay. Applications write events in the transaction of their
/// change instead.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    tables: Tables,

    /// The event type, such as order.placed
    #[arg(long = "type", value_name = "TYPE")]
    event_type: String,

    /// The payload: JSON, @FILE to read it from a file, or - to read it from standard input
    #[arg(long, value_name = "JSON|@FILE|-")]
    payload: String,

    /// The payload is not JSON but bytes of this content type, such as text/csv
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,

    /// The ordering key: events of one key are delivered one after another
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// The type of the event's aggregate
    #[arg(long, value_name = "TYPE")]
    aggregate_type: Option<String>,

    /// The id of the event's aggregate
    #[arg(long, value_name = "ID")]
    aggregate_id: Option<String>,

    /// The tenant
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,

    /// The correlation id
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,

    /// A header; can be repeated
    #[arg(long = "header", value_name = "NAME=VALUE")]
    headers: Vec<String>,

    /// Delay before delivery, such as 90s, 5m or 2d
    #[arg(long, value_name = "TIME")]
    after: Option<Age>,

    /// Earliest time of delivery, such as 2026-11-16T08:00:00Z; a time in the past means at once
    #[arg(long, value_name = "TIME", conflicts_with = "after", value_parser = at)]
    at: Option<DateTime<Utc>>,

    /// Dead-letter the event if it is not delivered within this time
    #[arg(long, value_name = "TIME")]
    expires_in: Option<Age>,

    /// Deduplication key: the event is written only if no event has this key
    #[arg(long, value_name = "KEY")]
    dedup_key: Option<String>,

    /// The event's id, instead of a new one
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Print one JSON object with event_id, which is null if an event has the deduplication key
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox send --type order.placed --payload '{\"order\": 42}' --key order-42
  outbox send --type report.ready --payload @report.json --tenant acme --header source=cron
  generate | outbox send --type import --payload - --content-type text/csv
  outbox send --type reminder --payload '{}' --after 5m --dedup-key reminder-2026-11-16
  outbox send --type reminder --payload '{}' --at 2026-12-24T18:00:00+01:00

Exit codes: 0 written, 1 failure, 2 wrong usage, 3 not written: an event has the deduplication key.";

pub(crate) async fn run(options: SendArgs) -> Result<ExitCode> {
    let event = event(&options)?;
    let target = options.tables.open().await?;
    let written = target.store.insert(&[event]).await.map_err(|error| target.explain(error))?;
    let id = written.first();
    if options.json {
        crate::output::json(&serde_json::json!({ "event_id": id }))?;
    }
    let Some(id) = id else {
        eprint_escaped("Not written: an event with this deduplication key exists already.");
        return Ok(exit_nothing());
    };
    if !options.json {
        print_escaped(id);
    }
    Ok(ExitCode::SUCCESS)
}

fn event(options: &SendArgs) -> Result<Event> {
    let mut event = Event::new(options.event_type.as_str());
    let payload = read(&options.payload)?;
    event = match &options.content_type {
        Some(content_type) => event.bytes(content_type, payload),
        None => event.json_text(String::from_utf8(payload).map_err(|_| {
            Usage("--payload is not UTF-8, so it is not JSON: name its type with --content-type".to_owned())
        })?),
    };
    if let Some(id) = &options.id {
        event = event.id(id.as_str());
    }
    if options.aggregate_type.is_some() || options.aggregate_id.is_some() {
        let aggregate_type = options.aggregate_type.as_deref().unwrap_or(GLOBAL);
        event = match &options.aggregate_id {
            Some(id) => event.aggregate(aggregate_type, id),
            None => event.aggregate_type(aggregate_type),
        };
    }
    if let Some(key) = &options.key {
        event = event.ordering_key(key);
    }
    if let Some(tenant) = &options.tenant {
        event = event.tenant(tenant);
    }
    if let Some(id) = &options.correlation_id {
        event = event.correlation(id);
    }
    for header in &options.headers {
        let Some((name, value)) = header.split_once('=') else {
            return Err(Usage("--header needs a name and a value, as in source=cron".to_owned()).into());
        };
        event = event.header(name, value);
    }
    if let Some(Age(delay)) = options.after {
        event = event.deliver_after(delay);
    }
    if let Some(at) = options.at {
        event = event.available_at(at);
    }
    if let Some(Age(time)) = options.expires_in {
        event = event.expires_at(Utc::now() + chrono::Duration::from_std(time)?);
    }
    if let Some(key) = &options.dedup_key {
        event = event.dedup_key(key);
    }
    // The library checks values that come from the command line: its errors are wrong usage.
    event.build().map_err(|error| Usage(error.to_string()).into())
}

fn at(text: &str) -> Result<DateTime<Utc>, &'static str> {
    let at = DateTime::parse_from_rfc3339(text);
    at.map(|at| at.with_timezone(&Utc))
        .map_err(|_| "write it as in 2026-11-16T08:00:00Z, with an offset or Z")
}

fn read(payload: &str) -> Result<Vec<u8>> {
    let limit = outbox::MAX_PAYLOAD as u64 + 1;
    let mut bytes = Vec::new();
    if payload == "-" {
        // One byte over the limit is enough for the library to refuse the payload.
        let stdin = std::io::stdin().lock().take(limit);
        std::io::BufReader::new(stdin).read_to_end(&mut bytes).context("cannot read standard input")?;
    } else if let Some(path) = payload.strip_prefix('@') {
        let file = std::fs::File::open(path).with_context(|| format!("cannot read --payload @{path}"))?;
        file.take(limit).read_to_end(&mut bytes).with_context(|| format!("cannot read --payload @{path}"))?;
    } else {
        bytes = payload.as_bytes().to_vec();
    }
    Ok(bytes)
}
