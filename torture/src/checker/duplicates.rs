//! Duplicates: a done event is delivered again only if the process that had done it was disrupted.

use super::facts::{Facts, Run, lines_of};
use super::{Breach, Verdict};

pub(super) fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    for (id, runs) in &facts.runs {
        let Some(done) = runs.iter().position(Run::is_done) else { continue };
        for (n, again) in runs.iter().enumerate().skip(done + 1) {
            verdict.counts.twice += 1;
            let done_before = runs[..n].iter().filter(|run| run.is_done() && run.end <= again.start);
            let without_cause =
                done_before.clone().find(|run| !facts.may_have_lost(run.process, run.end, again.start));
            // Concurrent runs are checked as overlaps.
            if let Some(done) = without_cause {
                let text = format!("{} had done it, and that process was not disrupted", done.process);
                verdict.add(Breach::Again, id, text, lines_of(&[*done, *again]));
            }
        }
    }
}
