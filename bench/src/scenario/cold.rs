//! Cold drain: how fast one relay empties a backlog with an empty handler, compared with a loop of
//! `SELECT` and `DELETE` and with other tools on as many events.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;

use super::{Scenario, peer_figures};
use crate::by_hand::{self, Claim};
use crate::environment::{BATCH, Environment, Scale, fill, per_second, turns_and_back};
use crate::figures::{Bound, Case, Part, Sheet, Unit};
use crate::load;
use crate::text::thousands;

const TABLE: &str = "bench_cold";
const OURS: &str = "outbox, single_node";
const BY_HAND: &str = "SELECT + DELETE by hand";

pub(crate) struct Cold;

/// The baseline has no start-up time, so the relay's start matters most here: a quick run has more
/// events than other drains.
fn backlog(env: &Environment) -> usize {
    env.count(300_000).min(100_000)
}

#[async_trait]
impl Scenario for Cold {
    fn name(&self) -> &'static str {
        "cold"
    }

    fn title(&self) -> &'static str {
        "Cold drain, one node"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "A backlog of {} events, one relay with an empty handler, completion `delete`, batches of {BATCH}; from its start until \
             every event is settled. Beside it a hand-written loop that selects and deletes as many rows at a time: the least that \
             delivers anything; each drains two of them in a round. The other tools get as many jobs, in a database of their own on the \
             same server, and settle them in the way that is quickest for them.",
            thousands(backlog(env) as f64)
        )
    }

    fn has_peers(&self) -> bool {
        true
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        let events = backlog(env);
        let outbox = env.outbox(TABLE, 4).await?;
        let mut case = Case::of(format!("{} events", thousands(events as f64)), &[OURS, BY_HAND]);
        for round in 0..env.rounds {
            let mut times: HashMap<&str, Duration> = HashMap::new();
            for who in turns_and_back(round, &[OURS, BY_HAND]) {
                fill(&outbox, events, 0).await?;
                env.settle(TABLE).await?;
                *times.entry(who).or_default() += match who {
                    OURS => load::drain(vec![outbox.single_node()], events).await?,
                    _ => by_hand::drain(env, TABLE, Claim::None, 1).await?,
                };
            }
            times.into_iter().for_each(|(who, time)| case.add(round, who, per_second(2 * events, time)));
            // A quick run measures the other tools once: they take most of its time.
            let Some(peers) = env.peers.as_ref().filter(|_| round == 0 || env.scale != Scale::Quick) else {
                continue;
            };
            for (who, figure) in peer_figures::measured(sheet, peers.drain(&env.database, events).await) {
                peer_figures::note_smaller(sheet, &who, &figure, events);
                figure.per_second().into_iter().for_each(|speed| case.add(round, &who, speed));
            }
        }
        outbox.close().await;
        sheet.bounds.push(Bound::at_least(
            "cold drain, one node, beside SELECT + DELETE",
            0.7,
            case.ratio_to(BY_HAND),
        ));
        let what = "cold drain, one node, beside the fastest of the other tools";
        sheet.bounds.push(Bound::at_least(what, 2.0, peer_figures::of_fastest(&case, 2)));
        sheet.parts.push(Part::bars("Cold drain, one node", Unit::EventsPerSecond, vec![case]));
        Ok(())
    }
}
