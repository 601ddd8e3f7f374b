//! The schedule of faults, derived from a seed so that a run can be repeated.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::faults::Fault;

/// One fault of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Time after the start.
    pub at: Duration,
    /// The fault.
    pub fault: Fault,
    /// Selects the target: an index into the possible targets, modulo their number.
    pub pick: u64,
    /// Random bits for everything else: the duration and the variant.
    pub random: u64,
}

/// Time without faults at the start, in which all processes start up.
const START_UP: Duration = Duration::from_secs(2);

/// Derives the schedule from a seed.
pub fn plan(seed: u64, length: Duration, faults: &[Fault]) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut scheduled: Vec<Fault> = faults.iter().copied().filter(|fault| fault.is_scheduled()).collect();
    scheduled.sort_unstable();
    scheduled.dedup();
    let total: u32 = scheduled.iter().map(|fault| fault.weight()).sum();
    let mut steps = Vec::new();
    let mut at = START_UP;
    if total == 0 {
        return steps;
    }
    loop {
        at += Duration::from_millis(rng.random_range(500..3_500));
        if at >= length {
            break;
        }
        let mut chosen = rng.random_range(0..total);
        let fault = scheduled.iter().copied().find(|fault| {
            let hit = chosen < fault.weight();
            chosen = chosen.saturating_sub(fault.weight());
            hit
        });
        let Some(fault) = fault else { break };
        steps.push(Step { at, fault, pick: rng.random(), random: rng.random() });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_same_seed_is_the_same_plan_and_another_one_is_not() {
        assert_eq!(plan(7, MINUTE, &Fault::ALL), plan(7, MINUTE, &Fault::ALL));
        assert_ne!(plan(7, MINUTE, &Fault::ALL), plan(8, MINUTE, &Fault::ALL));
    }

    #[test]
    fn the_order_in_which_faults_are_named_does_not_matter() {
        let (one, other) = ([Fault::Cut, Fault::Stop], [Fault::Stop, Fault::Cut, Fault::Cut]);
        assert_eq!(plan(7, MINUTE, &one), plan(7, MINUTE, &other));
    }

    #[test]
    fn a_long_plan_has_every_fault_that_was_asked_for_and_no_other() {
        let steps = plan(1, 60 * MINUTE, &Fault::ALL);
        for fault in Fault::ALL {
            assert_eq!(steps.iter().any(|step| step.fault == fault), fault.is_scheduled(), "{fault}");
        }
        assert!(steps.windows(2).all(|subscription| subscription[0].at < subscription[1].at));
        assert!(plan(1, MINUTE, &[Fault::Cut]).iter().all(|step| step.fault == Fault::Cut));
        assert!(plan(1, MINUTE, &[Fault::Panic]).is_empty());
    }
}
