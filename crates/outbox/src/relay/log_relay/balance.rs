//! Which subscriptions this node should lead: its part of them, decided in a pure function.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::log::{ClusterView, SubscriptionId};
use crate::store::NodeId;

/// Changes to the set of subscriptions that this node leads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rebalance {
    /// No node leads them: to be claimed.
    pub(super) claim: Vec<SubscriptionId>,
    /// Above this node's quota: to be released, as soon as they are at rest.
    pub(super) release: Vec<SubscriptionId>,
}

/// Distributes the subscriptions among the nodes.
#[derive(Debug, Default)]
pub(super) struct Balancer {
    /// Free in the previous round: the node that should have claimed them did not.
    free_before: HashSet<SubscriptionId>,
    /// Claimed above this node's quota, because no other node did. They stay for so many rounds:
    /// then other nodes, which may only have been slow, get another chance.
    spare: HashMap<SubscriptionId, u32>,
    /// For how many rounds a subscription stays when it becomes spare the next time.
    patience: HashMap<SubscriptionId, u32>,
}

/// For how many rounds a subscription stays with a node above its quota, the first time and at
/// most.
const SPARE: (u32, u32) = (5, 640);

impl Balancer {
    /// Every node may lead its part of the subscriptions that this node runs, rounded up. A
    /// subscription that no node claims for two rounds, because the nodes below their quota do not
    /// run it, is claimed by any node that runs it.
    pub(super) fn rebalance(
        &mut self,
        me: &NodeId,
        runs: &HashSet<SubscriptionId>,
        leads: &HashSet<SubscriptionId>,
        view: &ClusterView,
    ) -> Rebalance {
        let quota = runs.len().div_ceil(view.nodes.len().max(1));
        self.spare.retain(|subscription, rounds| {
            *rounds -= 1;
            *rounds > 0 && leads.contains(subscription)
        });
        for led in
            view.subscriptions.iter().filter(|state| !state.is_free() && state.leader.as_ref() != Some(me))
        {
            self.patience.remove(&led.id);
        }
        let counted: Vec<&SubscriptionId> = {
            let mut counted: Vec<_> =
                leads.iter().filter(|subscription| !self.spare.contains_key(*subscription)).collect();
            counted.sort();
            counted
        };
        let mut free: Vec<SubscriptionId> = view
            .subscriptions
            .iter()
            .filter(|state| runs.contains(&state.id) && state.is_free())
            .map(|state| state.id.clone())
            .collect();
        // Every node starts at another subscription, so that they do not all claim the same ones.
        if !free.is_empty() {
            let mut hasher = DefaultHasher::new();
            me.hash(&mut hasher);
            let start = usize::try_from(hasher.finish() % free.len() as u64).unwrap_or_default();
            free.rotate_left(start);
        }
        let quota_left = quota.saturating_sub(counted.len());
        let mut rebalance = Rebalance::default();
        for (n, subscription) in free.iter().enumerate() {
            if n < quota_left {
                rebalance.claim.push(subscription.clone());
            } else if self.free_before.contains(subscription) {
                let patience = self.patience.entry(subscription.clone()).or_insert(SPARE.0);
                self.spare.insert(subscription.clone(), *patience);
                *patience = (*patience * 2).min(SPARE.1);
                rebalance.claim.push(subscription.clone());
            }
        }
        if counted.len() > quota {
            rebalance.release = counted[quota..].iter().map(|subscription| (*subscription).clone()).collect();
        }
        self.free_before = free.into_iter().collect();
        rebalance
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::log::{Position, SubscriptionState, SubscriptionStatus};

    fn id(n: usize) -> SubscriptionId {
        SubscriptionId::new("t", format!("p{n:03}"))
    }

    fn view(nodes: usize, leaders: &[Option<&str>]) -> ClusterView {
        let subscriptions = leaders.iter().enumerate().map(|(n, leader)| SubscriptionState {
            id: id(n),
            status: SubscriptionStatus::Active,
            position: Position::START,
            error_count: 0,
            last_error: None,
            leader: leader.map(NodeId::from),
            epoch: 1,
            remaining: std::time::Duration::from_secs(1),
            updated_at: DateTime::UNIX_EPOCH,
        });
        ClusterView {
            nodes: (0..nodes).map(|n| NodeId::from(format!("n{n}"))).collect(),
            subscriptions: subscriptions.collect(),
        }
    }

    fn ids(range: std::ops::Range<usize>) -> HashSet<SubscriptionId> {
        range.map(id).collect()
    }

    #[test]
    fn alone_a_node_claims_everything_that_is_free() {
        let mut balancer = Balancer::default();
        let rebalance = balancer.rebalance(&"n0".into(), &ids(0..5), &HashSet::new(), &view(1, &[None; 5]));
        assert_eq!(rebalance.claim.iter().cloned().collect::<HashSet<_>>(), ids(0..5));
        assert!(rebalance.release.is_empty());
    }

    #[test]
    fn when_a_node_joins_the_others_release_what_is_over_their_quota() {
        let mut balancer = Balancer::default();
        let all = [Some("n0"); 6];
        let rebalance = balancer.rebalance(&"n0".into(), &ids(0..6), &ids(0..6), &view(3, &all));
        assert_eq!(rebalance.release, [id(2), id(3), id(4), id(5)]);
        assert!(rebalance.claim.is_empty());
    }

    #[test]
    fn a_node_exceeds_its_quota_only_if_no_other_node_claims() {
        let mut balancer = Balancer::default();
        let leaders = [Some("n0"), Some("n0"), None, None];
        let (runs, leads) = (ids(0..4), ids(0..2));
        let rebalance = balancer.rebalance(&"n0".into(), &runs, &leads, &view(2, &leaders));
        assert_eq!(rebalance, Rebalance::default(), "the other node should take them");
        let rebalance = balancer.rebalance(&"n0".into(), &runs, &leads, &view(2, &leaders));
        assert_eq!(rebalance.claim.len(), 2, "it does not");
        // They are not released again at once.
        let all = view(2, &[Some("n0"); 4]);
        for _ in 1..SPARE.0 {
            assert_eq!(balancer.rebalance(&"n0".into(), &runs, &ids(0..4), &all), Rebalance::default());
        }
    }

    /// The other node may only have been slow.
    #[test]
    fn the_other_node_gets_another_chance_but_ever_less_often() {
        let mut balancer = Balancer::default();
        let (free, all) = (view(2, &[Some("n0"), Some("n0"), None, None]), view(2, &[Some("n0"); 4]));
        let mut rounds = Vec::new();
        for _ in 0..3 {
            balancer.rebalance(&"n0".into(), &ids(0..4), &ids(0..2), &free);
            assert_eq!(balancer.rebalance(&"n0".into(), &ids(0..4), &ids(0..2), &free).claim.len(), 2);
            let kept = (1..)
                .find(|_| !balancer.rebalance(&"n0".into(), &ids(0..4), &ids(0..4), &all).release.is_empty());
            rounds.push(kept.unwrap());
        }
        assert_eq!(rounds, [5, 10, 20]);
        balancer.rebalance(
            &"n0".into(),
            &ids(0..4),
            &ids(0..2),
            &view(2, &[Some("n0"), Some("n0"), Some("n1"), Some("n1")]),
        );
        assert!(balancer.patience.is_empty(), "it takes them after all");
    }

    #[test]
    fn a_subscription_that_this_node_does_not_run_is_not_claimed() {
        let mut balancer = Balancer::default();
        let rebalance = balancer.rebalance(&"n0".into(), &ids(0..1), &HashSet::new(), &view(1, &[None; 3]));
        assert_eq!(rebalance.claim, [id(0)]);
    }
}
