//! Ordered drain: the same backlog with and without ordering keys.

use async_trait::async_trait;

use super::Scenario;
use crate::environment::{Environment, backlog, fill, per_second, turns};
use crate::figures::{Bound, Case, Part, Sheet, Unit};
use crate::load;
use crate::text::thousands;

const TABLE: &str = "bench_order";
const ORDERED: &str = "with keys";
const UNORDERED: &str = "without keys";

/// Numbers of keys. With more keys than events each event has its own.
const KEYS: [usize; 3] = [10, 1_000, 100_000];

pub(crate) struct Order;

#[async_trait]
impl Scenario for Order {
    fn name(&self) -> &'static str {
        "order"
    }

    fn title(&self) -> &'static str {
        "Ordered drain"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "A backlog of {} events whose order is kept per key, for few and for many keys, beside our own drain of the same events \
             without keys.",
            thousands(backlog(env) as f64)
        )
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        let events = backlog(env);
        let outbox = env.outbox(TABLE, 4).await?;
        for mode in ["single_node", "multi_node"] {
            let name = |keys| format!("{} keys", thousands(keys as f64));
            let mut cases = KEYS.map(|keys| Case::of(name(keys), &[ORDERED, UNORDERED]));
            for round in 0..env.rounds {
                for keys in turns(round, &[0, KEYS[0], KEYS[1], KEYS[2]]) {
                    fill(&outbox, events, keys).await?;
                    env.settle(TABLE).await?;
                    let relay =
                        if mode == "single_node" { outbox.single_node() } else { outbox.multi_node() };
                    let speed = per_second(events, load::drain(vec![relay], events).await?);
                    // One drain without keys is compared with all of them.
                    for (case, of) in cases.iter_mut().zip(KEYS) {
                        match keys {
                            0 => case.add(round, UNORDERED, speed),
                            _ if keys == of => case.add(round, ORDERED, speed),
                            _ => {}
                        }
                    }
                }
            }
            let what = format!("ordered drain, 1,000 keys, {mode}, beside our own unordered");
            sheet.bounds.push(Bound::at_least(what, 0.6, cases[1].ratio_to(UNORDERED)));
            let title = format!("Ordered drain, {mode}");
            sheet.parts.push(Part::bars(title, Unit::EventsPerSecond, cases.into()));
        }
        outbox.close().await;
        Ok(())
    }
}
