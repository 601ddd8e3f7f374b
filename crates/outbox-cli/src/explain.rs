//! `outbox explain`: why an event has not been delivered yet.

use std::process::ExitCode;

use anyhow::Result;
use outbox::{EventId, Explanation, Reason};
use serde::Serialize;

use crate::database::Tables;
use crate::output::json;
use crate::{exit_nothing, print_escaped};

/// Explain why an event has not been delivered yet, or how it ended
///
/// Reads the event, the events before it in its ordering key and in the queue, and the state of
/// running relays. Changes nothing.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// The event's id
    #[arg(value_name = "EVENT_ID")]
    id: String,

    #[command(flatten)]
    tables: Tables,

    /// Print one JSON object, with the name of each reason in `reasons[].reason`
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

/// JSON form: the explanation, and its text.
#[derive(Serialize)]
struct ExplanationView<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    text: String,
    advice: Option<String>,
}

pub(crate) async fn run(options: &ExplainArgs) -> Result<ExitCode> {
    // Missing tables are a reason, not an error.
    let target = options.tables.open_unchecked().await?;
    let id = EventId::from(options.id.as_str());
    let explanation = target.admin().explain(&id).await.map_err(|error| target.explain(error))?;
    if options.json {
        let (text, advice) = (explanation.to_string(), explanation.advice());
        json(&ExplanationView { explanation: &explanation, text, advice })?;
    } else {
        print_escaped(&explanation);
    }
    Ok(if *explanation.reason() == Reason::Unknown { exit_nothing() } else { ExitCode::SUCCESS })
}
