//! `outbox explain`: why an event has not been delivered yet.

use std::process::ExitCode;

use anyhow::Result;
use outbox::{EventId, Explanation, Reason};
use serde::Serialize;

use crate::database::Tables;
use crate::show::json;
use crate::{nothing, say};

/// Say why an event has not been delivered yet, or what became of it
///
/// It looks at the event, at what stands before it in its ordering key and in the queue, and at signs of running relays. It
/// changes nothing.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The event's id
    #[arg(value_name = "EVENT_ID")]
    id: String,

    #[command(flatten)]
    tables: Tables,

    /// Print JSON for programs: one object, with the name of each reason in `reasons[].reason`
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox explain 01JD3V7Q0Z6W4T0M1S2K8N5R9X
  outbox explain 01JD3V7Q0Z6W4T0M1S2K8N5R9X --json | jq -r '.reasons[0].reason'

Reasons: unknown, done, dead, held, held_by_vanished, lease_ran_out, not_due, expired, undecodable, behind, outage,
unrouted, relay_fails, with_leader, waiting, schema.

Exit codes: 0 explained, 1 failure, 2 wrong usage, 3 no such event.";

/// For programs: the explanation, and what people would read.
#[derive(Serialize)]
struct View<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    text: String,
    advice: Option<String>,
}

pub(crate) async fn run(options: &Options) -> Result<ExitCode> {
    // Tables that are not there are a reason, and not an error.
    let place = options.tables.open_unchecked().await?;
    let id = EventId::from(options.id.as_str());
    let explanation = place.admin().explain(&id).await.map_err(|error| place.explain(error))?;
    if options.json {
        let (text, advice) = (explanation.to_string(), explanation.advice());
        json(&View { explanation: &explanation, text, advice })?;
    } else {
        say(&explanation);
    }
    Ok(if *explanation.reason() == Reason::Unknown { nothing() } else { ExitCode::SUCCESS })
}
