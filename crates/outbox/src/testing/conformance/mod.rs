//! The conformance suite for stores.
//!
//! A store that is not part of this crate provides its outbox by a [`Harness`], and one line
//! generates a test for every case:
//!
//! ```no_run
//! use outbox::testing::conformance::Harness;
//! use outbox::Clock;
//! use outbox::store::SharedStore;
//! # async fn open_my_store(_: Clock) -> SharedStore {
//! #     outbox::open_store("sqlite::memory:", &Default::default()).await.unwrap()
//! # }
//!
//! struct MyStore;
//!
//! #[async_trait::async_trait]
//! impl Harness for MyStore {
//!     async fn connect(&self, clock: Clock) -> SharedStore {
//!         open_my_store(clock).await
//!     }
//! }
//!
//! outbox::conformance_tests!(Some(MyStore));
//! # fn main() {}
//! ```
//!
//! The cases are ordinary functions, so that a single one can be run:
//! `settle::a_stale_holder_settles_nothing(&harness).await`.

pub mod admin;
pub mod audit;
pub mod concurrency;
pub mod exclusive;
pub mod history;
pub mod inbox;
pub mod join;
pub mod log;
pub mod nodes;
pub mod order;
pub mod overview;
pub mod page;
pub mod routed;
pub mod schema;
pub mod settle;
pub mod subscriptions;
pub mod take;
pub mod write;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Timelike, Utc};

use crate::event::{Event, EventBuilder, EventId};
use crate::sql::Clock;
use crate::sql::dialect::FrozenClock;
use crate::store::{
    Claim, Completion, Cursor, Delivery, Filter, Holder, NodeId, OnDead, Origin, Settlement, SharedStore,
    StoredEvent, Take, Taken, Verdict,
};

/// Gives the suite a separate outbox for each test.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Connects to this harness's outbox, whose tables do not exist before
    /// [`migrate`](crate::store::Store::migrate) is called. A second call is a second node at the
    /// same outbox.
    async fn connect(&self, clock: Clock) -> SharedStore;

    /// Runs a statement as a writer in another language would. `{events}` stands for the table of
    /// the events, `{inbox}` for that of the inbox, `{log}` for that of the log's events,
    /// `{progress}` for that of its subscriptions, `{version}` for that of the schema version.
    /// `false`: this store has no SQL, and the cases that need it are skipped.
    async fn execute(&self, sql: &str) -> bool {
        let _ = sql;
        false
    }

    /// Whether the table gives events without an ordering key that of their aggregate. `false`: the
    /// store refuses [`order_by_aggregate`](crate::store::Store::order_by_aggregate), and its case
    /// is skipped.
    fn gives_keys(&self) -> bool {
        true
    }
}

/// Generates a `#[tokio::test]` for every case of the [suite](crate::testing::conformance). The
/// expression creates a new harness for each test, or `None` where there is no database to run on.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::conformance_tests! { @cases $harness;
            write {
                json_is_kept_to_the_byte
                bytes_are_kept_to_the_byte
                every_field_comes_back_as_it_was_written
                fields_at_their_limits_fit
                times_at_their_limits_fit
                many_events_keep_the_order_in_which_they_were_given
                writing_no_events_stores_nothing
                other_languages_need_only_a_type_and_a_payload
                other_languages_may_leave_headers_blank
                types_and_keys_differ_by_case_and_trailing_spaces
                a_deduplication_key_keeps_the_second_event_out
                a_deduplication_key_counts_inside_one_batch
                a_deduplication_key_is_free_again_after_its_event_is_deleted
                a_duplicate_id_is_an_error_and_stores_nothing
                a_duplicate_id_is_an_error_beside_deduplication_keys_too
            }
            take {
                due_events_are_taken_oldest_first
                a_due_time_in_the_past_is_due_at_once
                a_limit_is_kept
                a_delay_counts_from_the_time_of_storing
                an_absolute_time_is_waited_for
                recent_events_are_skipped_on_request
                leased_events_are_not_taken
                an_expired_lease_is_taken_over_under_a_higher_claim
                a_released_event_is_not_suspect
                a_released_suspect_is_still_suspect
                a_reaped_event_is_free_and_still_suspect
                extending_keeps_a_lease_and_reports_the_lost
                extending_under_an_old_claim_is_lost
                starts_are_counted_while_the_claim_holds
                a_cursor_sees_everything_exactly_once
                a_cursor_continues_past_leased_events
                expiry_and_waiting_time_are_reported
                a_row_that_cannot_be_decoded_does_not_stop_the_rest
                a_byte_limit_is_kept
                the_databases_clock_decides_unless_frozen
            }
            settle {
                done_events_are_kept_or_deleted
                settling_twice_moves_nothing
                a_counted_failure_becomes_a_retry
                a_snoozed_event_stays_new
                a_delay_is_distinguished_from_a_retry
                a_dead_event_has_a_time_and_an_error
                a_released_event_is_unchanged
                errors_are_kept_to_their_limit
                a_stale_holder_settles_nothing
                another_node_settles_nothing
                the_same_owner_settles_nothing_under_an_old_claim
                an_expired_holder_may_settle_until_another_node_takes_over
                a_finished_event_stays_finished
                a_batch_may_hold_every_verdict
                settling_nothing_moves_nothing
            }
            order {
                a_key_is_taken_from_its_head_in_order
                a_leased_head_blocks_its_key_only
                a_key_is_taken_over_as_a_whole
                an_event_of_a_vanished_holder_is_fenced_once
                a_key_is_taken_over_beside_claims_at_their_limit
                skipped_types_are_not_taken
                skipped_types_block_their_own_destination_only
                a_failing_event_blocks_its_own_destination_only
                key_progress_is_per_destination
                a_probe_is_one_event
                a_probe_is_the_head_of_its_key
                a_retrying_head_blocks_its_key_only
                a_delayed_head_blocks_its_key_only
                a_limit_cuts_a_key_at_its_end
                two_thousand_blocked_events_do_not_hide_another_key
                a_dead_head_blocks_its_key_or_is_skipped
                events_of_chosen_keys_are_taken_alone
                a_recent_head_blocks_its_key
                key_progress_counts_as_taken
                key_progress_does_not_hide_other_keys
                events_behind_own_leases_are_taken_before_those_are_settled
                events_without_a_key_are_ordered_by_aggregate_on_request
                key_progress_needs_valid_leases
            }
            routed {
                only_routed_types_are_taken
                routed_types_are_taken_from_every_origin
                types_may_be_routed_for_an_aggregate
                types_may_be_routed_by_patterns
                unrouted_events_block_their_keys
                the_cursor_of_the_last_due_event_is_reported
                events_that_no_running_relay_routes_are_reported
            }
            exclusive {
                a_lease_has_one_holder_at_a_time
                the_same_holder_keeps_its_epoch
                a_takeover_raises_the_epoch_and_is_not_clean
                a_resigned_lease_is_free_immediately_and_clean
                a_lease_that_is_not_resigned_cleanly_is_free_immediately
                resigning_in_an_old_epoch_changes_nothing
                leases_of_different_names_are_independent
                every_node_can_read_the_leader
                rows_are_not_leased_while_the_table_is_held
                reading_as_the_holder_writes_nothing
                an_old_epoch_takes_nothing
                an_old_epoch_settles_nothing
                an_old_epoch_counts_no_start
                rows_leased_before_stay_with_their_holder
                only_one_of_many_becomes_the_leader
            }
            admin {
                running_relays_are_listed
                events_are_listed_counted_and_found
                events_are_found_by_every_field
                events_are_found_by_their_age
                events_are_counted_by_type
                events_ahead_in_the_key_are_found
                the_facts_around_an_event_are_reported
                listing_goes_page_by_page
                replay_resets_dead_events
                replay_takes_one_event_or_several
                only_free_pending_events_are_cancelled
                statistics_count_by_status
                the_backlog_counts_pending_and_free_events
                done_events_are_purged_by_the_time_they_were_done
                dead_events_are_purged_by_the_time_they_were_dead_lettered
                a_pending_event_is_never_purged
                finished_events_without_a_time_are_purged_by_their_age
                a_dead_event_that_blocks_its_key_is_not_purged
                done_events_between_kept_dead_ones_are_all_purged
                a_purge_goes_in_batches
                purging_everything_takes_pending_events_too
            }
            nodes {
                the_leases_of_a_vanished_relay_are_released_once
                the_old_holder_of_a_released_event_is_fenced
                only_relays_with_a_presence_are_released
                a_relay_that_came_back_may_vanish_again
                releasing_keeps_the_order_of_keys
                an_operator_releases_a_node
                an_operator_releases_a_leader
            }
            page {
                each_status_group_is_read_in_its_order
                every_hundredth_of_a_thousand_is_found_once
                a_page_without_a_match_has_a_next_page
                events_settled_between_pages_do_not_disturb_the_rest
                a_zero_limit_is_refused_and_an_unknown_event_is_not_found
                pages_hold_the_events_that_match_their_filter
                a_row_shows_all_but_the_payload
                metadata_has_sizes_and_never_contents
                an_event_is_found_whatever_its_id_is
                times_of_other_writers_are_paged_through
                pages_are_read_while_others_settle
            }
            overview {
                an_overview_counts_up_to_a_limit
                an_overview_names_the_leader
                status_groups_are_broken_down_by_type
                keys_blocked_by_a_dead_event_are_found
            }
            history {
                failed_attempts_are_kept
                only_failures_leave_an_attempt
                a_stale_verdict_leaves_no_attempt
                a_leader_records_attempts_only_while_it_leads
                old_attempts_are_purged_in_batches
                a_batch_of_failures_is_recorded_as_a_whole
            }
            audit {
                only_a_dead_event_is_skipped
                old_audit_entries_are_purged_in_batches
                a_skipped_event_unblocks_its_key
                a_skip_and_a_replay_do_not_both_take_effect
                the_payload_of_a_dead_event_is_replaced
                a_late_verdict_does_not_undo_an_operators_change
                audit_entries_are_written
            }
            inbox {
                old_inbox_entries_are_purged_in_batches
            }
            schema {
                migrating_twice_changes_nothing
                concurrent_migrations_succeed
                an_unmigrated_store_returns_not_migrated
                a_newer_schema_is_refused
            }
            join {
                a_join_starts_with_nothing_counted
                a_join_needs_at_least_one_step
                joins_are_listed_by_group_and_status
                settling_counts_every_step
                settling_counts_where_done_events_are_deleted
                only_a_final_outcome_counts
                a_stale_holder_counts_nothing
                a_step_that_was_settled_before_counts_when_attached
                attaching_the_last_settled_step_closes_the_join
                attaching_twice_is_attaching_once
                an_event_may_be_a_step_of_several_joins
                reports_count_once_and_attach_missing_steps
                a_report_and_a_settlement_count_once
                the_follow_up_is_written_with_the_last_step
                the_follow_up_keeps_its_payload_and_its_delay
                a_wait_on_settled_steps_writes_the_follow_up_immediately
                a_follow_up_is_set_once
                a_slow_join_is_waited_for_as_long_as_it_takes
                a_cancelled_join_has_no_follow_up
                cancelling_a_closed_join_changes_nothing
                a_replayed_step_moves_from_failed_to_completed
                a_replay_after_the_end_counts_but_keeps_the_status
                a_cancelled_event_fails_its_step
                an_event_that_cannot_be_leased_fails_its_step
                a_skipped_step_stays_failed
                a_failed_attempt_of_a_step_is_kept
                unknown_closed_and_full_joins_are_refused
                a_join_in_another_database_gets_a_report_event
                the_row_of_a_step_has_home_and_outcome
                a_join_at_this_databases_own_name_is_local
                a_database_with_two_names_counts_its_steps
                a_follow_up_with_an_existing_id_is_not_written_again
                purging_spares_open_joins
                concurrent_steps_are_counted_exactly
            }
            log {
                an_event_of_the_log_comes_back_as_it_was_appended
                the_log_is_read_by_position
                a_query_selects_matching_events
                a_query_is_read_page_by_page
                tags_differ_by_case_and_trailing_spaces
                a_large_append_keeps_its_order
                a_condition_checks_matching_events_after_its_position
                a_conflict_appends_nothing
                a_repeated_request_is_not_appended_again
                every_part_of_a_condition_must_hold
                a_position_beyond_the_head_is_refused
                an_empty_append_checks_its_condition
                an_existing_id_appends_nothing
                appended_events_are_settled_and_safe
                the_watermark_is_stored
                an_undecodable_row_of_the_log_is_reported_with_its_position
                positions_are_found_by_time
                of_concurrent_decisions_one_succeeds
                old_events_of_the_log_are_purged_once_every_subscription_has_passed_them
            }
            subscriptions {
                a_subscription_is_registered_once
                a_subscription_may_start_at_the_head
                names_of_subscriptions_differ_by_case_and_trailing_spaces
                a_subscription_has_one_leader_at_a_time
                a_paused_subscription_may_have_a_leader
                a_heartbeat_renews_leases
                an_expired_lease_is_not_renewed
                a_takeover_fences_the_old_leader
                a_leader_may_save_until_another_node_takes_over
                a_reset_fences_the_leader
                a_reset_clears_errors_but_not_a_pause
                a_pause_survives_a_save
                errors_are_recorded_and_cleared
                a_move_names_the_position_it_moves_from
                a_repeated_move_counts_once
                many_subscriptions_are_moved_in_one_call
                a_released_subscription_is_free_immediately
                a_node_that_leaves_releases_all_subscriptions
                nodes_are_listed_while_their_heartbeat_is_recent
                a_status_is_set_by_publisher_or_in_one_topic
                operators_pause_and_resume_with_sql
                concurrent_claims_never_share_a_subscription
                leaders_operators_and_new_nodes_do_not_fail_each_other
            }
            concurrency {
                concurrent_takers_never_get_the_same_event
                concurrent_takers_keep_the_order_of_keys
                events_of_a_key_become_visible_in_their_order
                writers_takers_and_settlers_do_not_fail_each_other
                purging_beside_takers_does_not_fail
            }
        }
    };
    (@cases $harness:expr; $($subject:ident { $($case:ident)* })*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(harness) = $harness {
                    $crate::testing::conformance::$subject::$case(&harness).await;
                }
            }
        )*)*
    };
}

/// Default lease of the cases.
const LEASE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// An outbox with a clock that the case advances.
struct Scene {
    store: SharedStore,
    clock: FrozenClock,
}

impl Scene {
    async fn open(harness: &impl Harness) -> Self {
        // Whole milliseconds: not every database stores more.
        let now = Utc::now();
        let now = now.with_nanosecond(now.nanosecond() / 1_000_000 * 1_000_000).unwrap_or(now);
        let clock = FrozenClock::at(now);
        let store = harness.connect(Clock::Frozen(clock.clone())).await;
        store.migrate().await.expect("the tables are created");
        Self { store, clock }
    }

    fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Writes events in one transaction.
    async fn write(&self, events: impl IntoIterator<Item = EventBuilder>) -> Vec<EventId> {
        let events: Vec<Event> = events.into_iter().map(|e| e.build().expect("a valid event")).collect();
        self.store.insert(&events).await.expect("events are stored")
    }

    async fn write_one(&self, event: EventBuilder) -> EventId {
        self.write([event]).await.pop().expect("one event is stored")
    }

    async fn take(&self, take: &Take) -> Taken {
        self.store.take(take).await.expect("events are taken")
    }

    /// Leases all due events.
    async fn lease(&self, owner: &str) -> Vec<Delivery> {
        self.take(&leasing(owner)).await.deliveries
    }

    /// Leases the oldest due event.
    async fn lease_one(&self, owner: &str) -> Delivery {
        let taken = self.take(&Take { limit: 1, ..leasing(owner) }).await;
        taken.deliveries.into_iter().next().expect("an event is due")
    }

    async fn settle(&self, owner: &str, delivery: &Delivery, verdict: Verdict) -> u64 {
        self.settle_all(&holder(owner), [(delivery, verdict)]).await
    }

    async fn settle_all<'a>(
        &self,
        by: &Holder,
        verdicts: impl IntoIterator<Item = (&'a Delivery, Verdict)>,
    ) -> u64 {
        let settlements: Vec<Settlement> =
            verdicts.into_iter().map(|(d, verdict)| settlement(d, verdict)).collect();
        self.store.settle(by, Completion::Keep, &settlements).await.expect("verdicts are written").moved
    }

    async fn see(&self, id: &EventId) -> StoredEvent {
        self.find(id).await.expect("the event is stored")
    }

    async fn find(&self, id: &EventId) -> Option<StoredEvent> {
        self.store.find(id).await.expect("the store answers")
    }

    async fn count(&self, filter: Filter) -> u64 {
        self.store.count(&filter).await.expect("the store counts")
    }

    async fn all(&self) -> Vec<StoredEvent> {
        self.store.list(&Filter::default(), 100_000).await.expect("the store lists")
    }

    /// Writes an event, takes it and dead-letters it.
    async fn dead_letter(&self, event: EventBuilder) -> EventId {
        let id = self.write_one(event).await;
        let taken = self.lease("setup").await;
        let delivery = taken.iter().find(|d| *d.event.id() == id).expect("the event is due");
        self.settle("setup", delivery, dead("poison")).await;
        for other in taken.iter().filter(|d| *d.event.id() != id) {
            self.settle("setup", other, Verdict::Released).await;
        }
        id
    }
}

fn event(event_type: &str) -> EventBuilder {
    Event::new(event_type).json_text("{}")
}

fn keyed(key: &str) -> EventBuilder {
    event("thing").ordering_key(key)
}

fn holder(owner: &str) -> Holder {
    Holder::Lease { owner: NodeId::from(owner), lease: LEASE }
}

/// Takes by lease, from the start, at most a thousand events.
fn leasing(owner: &str) -> Take {
    taking(holder(owner))
}

fn taking(by: Holder) -> Take {
    Take {
        by,
        from: Origin::Start,
        limit: 1_000,
        skip_recent: Duration::ZERO,
        on_dead: OnDead::Hold,
        skip_types: Vec::new(),
        only: None,
        probe: None,
        destinations: Default::default(),
        held_up_to: HashMap::new(),
        group_lease: true,
        max_bytes: usize::MAX,
        by_aggregate: false,
    }
}

fn after(cursor: Option<Cursor>) -> Origin {
    cursor.map_or(Origin::Start, Origin::After)
}

fn settlement(delivery: &Delivery, verdict: Verdict) -> Settlement {
    Settlement { id: delivery.event.id().clone(), claim: delivery.claim, verdict }
}

fn again(seconds: u64) -> Verdict {
    Verdict::Again {
        after: Duration::from_secs(seconds),
        counted: true,
        error: Some("broker away".to_owned()),
    }
}

fn dead(reason: &str) -> Verdict {
    Verdict::Dead { counted: true, reason: reason.to_owned() }
}

fn ids(deliveries: &[Delivery]) -> Vec<EventId> {
    deliveries.iter().map(|d| d.event.id().clone()).collect()
}

fn held(deliveries: &[Delivery]) -> Vec<(EventId, Claim)> {
    deliveries.iter().map(|d| (d.event.id().clone(), d.claim)).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_in_the_list() {
        let list = include_str!("mod.rs");
        for source in [
            include_str!("admin.rs"),
            include_str!("audit.rs"),
            include_str!("exclusive.rs"),
            include_str!("history.rs"),
            include_str!("inbox.rs"),
            include_str!("join.rs"),
            include_str!("log.rs"),
            include_str!("nodes.rs"),
            include_str!("order.rs"),
            include_str!("overview.rs"),
            include_str!("page.rs"),
            include_str!("subscriptions.rs"),
            include_str!("routed.rs"),
            include_str!("schema.rs"),
            include_str!("settle.rs"),
            include_str!("take.rs"),
            include_str!("concurrency.rs"),
            include_str!("write.rs"),
        ] {
            let cases = source.lines().filter_map(|line| line.strip_prefix("pub async fn "));
            for case in cases.filter_map(|line| line.split('(').next()) {
                assert!(list.contains(&format!("                {case}\n")), "{case} is not in the list");
            }
        }
    }
}
