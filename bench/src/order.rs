//! Ordered drain: the same backlog with and without ordering keys.

use crate::drain::drain;
use crate::{Bed, fill, per_second, print_ratio};

const TABLE: &str = "bench_order";

pub(crate) async fn run(bed: &Bed, events: usize, keys: &[usize]) -> anyhow::Result<()> {
    for &keys in keys {
        for several in [false, true] {
            let (mut ordered, mut unordered) = (Vec::new(), Vec::new());
            for _ in 0..bed.rounds {
                let outbox = bed.outbox(TABLE, 4).await?;
                for (keys, figures) in [(keys, &mut ordered), (0, &mut unordered)] {
                    fill(&outbox, events, keys).await?;
                    bed.settle(TABLE).await?;
                    let relay = if several { outbox.multi_node() } else { outbox.single_node() };
                    figures.push(per_second(events, drain(&outbox, relay, events).await?));
                }
                outbox.close().await;
            }
            let mode = if several { "multi_node" } else { "single_node" };
            print_ratio(
                &format!("ordered drain, {keys} keys, {mode}"),
                "ev/s",
                &ordered,
                &unordered,
                ">= 0.6",
            );
        }
    }
    Ok(())
}
