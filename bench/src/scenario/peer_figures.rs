//! Adds the figures of peers to a sheet.

use crate::figures::{Case, Sheet, Spread};
use crate::peers::{Figure, Outcome};
use crate::text::thousands;

/// The figures of the peers that ran, with their display names. The settings of each peer, or why
/// it did not run, are noted once.
pub(super) fn measured(sheet: &mut Sheet, outcomes: Vec<Outcome>) -> Vec<(String, Figure)> {
    let mut figures = Vec::new();
    for outcome in outcomes {
        let note = match outcome {
            Outcome::Measured(measured) => {
                let who = format!("{} {} ({})", measured.peer, measured.version, measured.language);
                let note = format!("{who}: {}.", measured.settings);
                figures.push((who, measured.figure));
                note
            }
            Outcome::NotRun(peer) => format!("{}: not run: {}.", peer.peer, peer.reason),
        };
        if !sheet.notes.contains(&note) {
            sheet.notes.push(note);
        }
    }
    figures
}

/// Notes that a slow peer got a smaller backlog.
pub(super) fn note_smaller(sheet: &mut Sheet, who: &str, figure: &Figure, events: usize) {
    if let Figure::Drain { events: given, .. } = figure
        && (*given as usize) < events
    {
        let note = format!("{who} was given {} events.", thousands(*given as f64));
        if !sheet.notes.contains(&note) {
            sheet.notes.push(note);
        }
    }
}

/// Ratio to the best peer where a greater figure is better; all contestants after the first `ours`
/// are peers.
pub(super) fn of_fastest(case: &Case, ours: usize) -> Option<Spread> {
    ratios(case, ours).min_by(|one, other| one.median.total_cmp(&other.median))
}

/// Ratio to the best peer where a smaller figure is better.
pub(super) fn of_soonest(case: &Case, ours: usize) -> Option<Spread> {
    ratios(case, ours).max_by(|one, other| one.median.total_cmp(&other.median))
}

fn ratios(case: &Case, ours: usize) -> impl Iterator<Item = Spread> {
    case.pairs().skip(ours.saturating_sub(1)).filter_map(|(.., ratio)| ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_peer_is_the_one_that_counts() {
        let mut case = Case::of("drain", &["outbox", "by hand"]);
        for (who, value) in [("outbox", 12.0), ("by hand", 24.0), ("slow", 1.0), ("fast", 4.0)] {
            case.add(0, who, value);
        }
        assert_eq!(of_fastest(&case, 2).map(|ratio| ratio.median), Some(3.0));
        assert_eq!(of_soonest(&case, 2).map(|ratio| ratio.median), Some(12.0));
        assert_eq!(of_fastest(&case, 4), None);
    }
}
