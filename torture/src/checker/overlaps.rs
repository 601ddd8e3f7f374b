//! Overlaps: two handlers run one event at the same time only if the first one's lease had expired.

use super::facts::{Facts, lines_of};
use super::{Breach, Verdict};

pub(super) fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    for (id, runs) in &facts.runs {
        for (n, later) in runs.iter().enumerate() {
            for earlier in &runs[..n] {
                if earlier.end <= later.start {
                    continue;
                }
                if facts.lease_may_be_over(earlier.process, later.start) {
                    verdict.counts.excused_overlaps += 1;
                    continue;
                }
                let text = format!(
                    "{} and {} had it at the same time, and the first one could have renewed its lease",
                    earlier.process, later.process
                );
                verdict.add(Breach::Overlap, id, text, lines_of(&[*earlier, *later]));
            }
        }
    }
}
