//! Cold drain by several concurrent relays, compared with as many hand-written loops.

use async_trait::async_trait;

use super::Scenario;
use crate::by_hand::{self, Claim};
use crate::environment::{BATCH, Environment, backlog, fill, per_second, turns};
use crate::figures::{Bound, Case, Part, Sheet, Unit};
use crate::load;
use crate::text::thousands;

const TABLE: &str = "bench_nodes";
const OURS: &str = "outbox, multi_node";
const LOCKED: &str = "one open transaction, by hand";
const LEASED: &str = "SKIP LOCKED claim + DELETE, by hand";

pub(crate) struct Nodes;

#[async_trait]
impl Scenario for Nodes {
    fn name(&self) -> &'static str {
        "nodes"
    }

    fn title(&self) -> &'static str {
        "Cold drain, several nodes"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "A backlog of {} events and 1, 2 and 4 relays, each with connections of its own, batches of {BATCH}. Beside them as many \
             hand-written loops of two kinds. `SKIP LOCKED claim + DELETE` notes in the row who has it and until when, as every work queue does \
             whose handlers may take their time. `one open transaction` only locks the rows: it reads, delivers, deletes and \
             commits, so a transaction and a connection are taken up by each batch for as long as its handlers run.",
            thousands(backlog(env) as f64)
        )
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        let events = backlog(env);
        let outbox = env.outbox(TABLE, 4).await?;
        let mut cases = Vec::new();
        for nodes in [1, 2, 4] {
            let name = if nodes == 1 { "1 relay".to_owned() } else { format!("{nodes} relays") };
            let mut case = Case::of(name, &[OURS, LOCKED, LEASED]);
            for round in 0..env.rounds {
                for who in turns(round, &[OURS, LOCKED, LEASED]) {
                    fill(&outbox, events, 0).await?;
                    env.settle(TABLE).await?;
                    let time = match who {
                        OURS => by_relays(env, events, nodes).await?,
                        LOCKED => by_hand::drain(env, TABLE, Claim::Locked, nodes).await?,
                        _ => by_hand::drain(env, TABLE, Claim::Leased, nodes).await?,
                    };
                    case.add(round, who, per_second(events, time));
                }
            }
            if nodes == 2 {
                // The bound applies to claims that outlive their transaction, as the outbox's do.
                // The other loops guarantee less: their claims end with the connection, and a
                // transaction is open while handlers run.
                let what = "cold drain, two nodes, beside SKIP LOCKED claim + DELETE";
                sheet.bounds.push(Bound::at_least(what, 1.0, case.ratio_to(LEASED)));
            }
            cases.push(case);
        }
        let rest = outbox.admin().backlog().await?.pending;
        anyhow::ensure!(rest == 0, "{rest} events are left");
        outbox.close().await;
        sheet.parts.push(Part::bars("Cold drain, several nodes", Unit::EventsPerSecond, cases));
        Ok(())
    }
}

/// Drains by relays that share nothing but the table.
async fn by_relays(env: &Environment, events: usize, nodes: usize) -> anyhow::Result<std::time::Duration> {
    let mut handles = Vec::new();
    for _ in 0..nodes {
        handles.push(env.handle(TABLE, 4).await?);
    }
    let time = load::drain(handles.iter().map(outbox::Outbox::multi_node).collect(), events).await?;
    for handle in handles {
        handle.close().await;
    }
    Ok(time)
}
