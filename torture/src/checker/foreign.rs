//! Rows that are not part of the workload: any outcome is accepted, but they must not be delivered
//! forever.

use super::facts::Facts;
use super::{Breach, Verdict};

/// Maximum number of deliveries of such a row. Its relay may be killed or cut off each time, but
/// hardly more often than this.
const MAX_DELIVERIES: usize = 25;

pub(super) fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    for (id, deliveries) in &facts.foreign_deliveries {
        if deliveries.len() > MAX_DELIVERIES {
            let text = format!("it was delivered {} times", deliveries.len());
            let proof = facts.foreign.get(id).copied().into_iter().chain(deliveries.iter().copied().take(3));
            verdict.add(Breach::Endless, id, text, proof.collect());
        }
    }
}
