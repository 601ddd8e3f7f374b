//! Peers in a sheet: what they measured goes to the cases, who could not run to the notes.

use crate::figures::{Case, Sheet, Spread};
use crate::peers::{Figure, Outcome};
use crate::text::thousands;

/// The figures of those that ran, by the names under which they are shown. How each was set up, or why it did not run, is noted once.
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

/// A peer that is too slow for the whole backlog gets less: that must be said.
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

/// Ours in parts of the peer that does best, where a greater figure is better: everybody but the first `ours` of the case is a peer.
pub(super) fn of_fastest(case: &Case, ours: usize) -> Option<Spread> {
    ratios(case, ours).min_by(|one, other| one.median.total_cmp(&other.median))
}

/// The same where a smaller figure is better.
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
