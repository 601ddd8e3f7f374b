//! The inbox: events that a consumer has handled already, recorded in its own transaction.

mod common;

use std::time::Duration;

use common::{Backend, TestDb, until};
use outbox::{Error, EventError, EventId, PurgeSettings, Tx};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Calls `once` in its own transaction, and commits it.
async fn once<DB: Backend>(db: &TestDb<DB>, consumer: &str, id: &str) -> bool {
    let mut tx = db.outbox.begin().await.unwrap();
    let first = tx.once(consumer, id).await.unwrap();
    tx.commit().await.unwrap();
    first
}

async fn each<DB: Backend>(tx: &mut Tx<'_, DB>, ids: &[&str]) -> Vec<bool> {
    tx.once_each("billing", ids).await.unwrap()
}

async fn entries<DB: Backend>(db: &TestDb<DB>) -> i64 {
    db.number("SELECT count(*) FROM {t}_inbox").await
}

on_every_database! {
    async fn an_event_is_new_to_a_consumer_once(|db|) {
        let id = EventId::generate();
        let mut tx = db.outbox.begin().await.unwrap();
        assert!(tx.once("billing", &id).await.unwrap());
        assert!(!tx.once("billing", &id).await.unwrap(), "in the same transaction too");
        tx.commit().await.unwrap();
        assert!(!once(&db, "billing", id.as_str()).await);
        assert!(once(&db, "shipping", id.as_str()).await, "another consumer");
        assert!(once(&db, "billing", "another").await);
    }

    async fn a_rollback_removes_the_entry(|db|) {
        let mut tx = db.outbox.begin().await.unwrap();
        assert!(tx.once("billing", "a").await.unwrap());
        tx.rollback().await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        assert!(tx.once("billing", "a").await.unwrap());
        drop(tx);
        assert!(once(&db, "billing", "a").await);
        assert_eq!(entries(&db).await, 1);
    }

    async fn it_works_in_a_transaction_that_stays_yours(|db|) {
        let mut tx = db.outbox.pool().begin().await.unwrap();
        let mut bound = db.outbox.bind(&mut tx);
        assert!(bound.once("billing", "a").await.unwrap());
        assert!(!bound.once("billing", "a").await.unwrap());
        drop(bound);
        tx.rollback().await.unwrap();
        let mut tx = db.outbox.pool().begin().await.unwrap();
        assert!(db.outbox.bind(&mut tx).once("billing", "a").await.unwrap());
        tx.commit().await.unwrap();
        assert!(!once(&db, "billing", "a").await);
    }

    async fn many_events_are_checked_at_once_and_answered_in_order(|db|) {
        once(&db, "billing", "b").await;
        let mut tx = db.outbox.begin().await.unwrap();
        assert_eq!(each(&mut tx, &["c", "b", "a", "c", "ä"]).await, [true, false, true, false, true]);
        assert_eq!(each(&mut tx, &["a", "d", "d"]).await, [false, true, false]);
        assert!(each(&mut tx, &[]).await.is_empty());
        tx.commit().await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        let thousands: Vec<String> = (0..2_500).map(|n| format!("n{n}")).collect();
        let first = tx.once_each("billing", &thousands).await.unwrap();
        assert_eq!(first, [true; 2_500]);
        tx.rollback().await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        assert_eq!(each(&mut tx, &["a", "n7", "b", "d", "e"]).await, [false, true, false, false, true]);
        tx.commit().await.unwrap();
    }

    /// Case, accents, spaces: texts that a database might consider equal.
    async fn ids_are_compared_exactly(|db|) {
        let alike = ["a", "A", "a ", " a", "ä", "a\u{308}", "à", "ａ", "ß", "ss", "'", "\\", "%", "\"", "🦀"];
        let mut tx = db.outbox.begin().await.unwrap();
        assert_eq!(each(&mut tx, &alike).await, vec![true; alike.len()]);
        for consumer in ["Billing", "billing ", "bílling"] {
            assert!(tx.once(consumer, "a").await.unwrap(), "{consumer:?}");
        }
        for id in alike {
            assert!(!tx.once("billing", id).await.unwrap(), "{id:?}");
        }
        tx.commit().await.unwrap();
    }

    async fn names_at_their_limits_fit_and_longer_ones_are_not_cut(|db|) {
        let (consumer, id) = ("🦀".repeat(128), "🦀".repeat(255));
        let mut tx = db.outbox.begin().await.unwrap();
        assert!(tx.once(&consumer, &id).await.unwrap());
        assert_eq!(tx.once_each(&consumer, [&id]).await.unwrap(), [false]);
        let too_long = format!("{id}x");
        let wrong: [(&str, &str); 6] =
            [("", "a"), ("a", ""), (&format!("{consumer}x"), "a"), ("a", &too_long), ("a\n", "a"), ("a", "b\0")];
        for (consumer, id) in wrong {
            let refused = [
                tx.once(consumer, id).await.unwrap_err(),
                tx.once_each(consumer, ["fine", id]).await.unwrap_err(),
            ];
            for error in refused {
                let Error::Inbox(reason) = error else { panic!("{error:?}") };
                assert!(
                    matches!(
                        reason,
                        EventError::Empty { .. } | EventError::TooLong { .. } | EventError::Control { .. }
                    ),
                    "{reason}"
                );
            }
        }
        // None of these reached the database, and the transaction is still usable.
        tx.commit().await.unwrap();
        assert_eq!(entries(&db).await, 1);
    }

    /// The second transaction has to wait for the end of the first.
    async fn two_at_once_wait_for_each_other_and_one_is_first(|db|) {
        let other = db.another().await;
        for (id, commit) in [("committed", true), ("rolled back", false)] {
            let mut tx = db.outbox.begin().await.unwrap();
            assert!(tx.once("billing", id).await.unwrap());
            let outbox = other.outbox.clone();
            let mut second = tokio::spawn(async move {
                let mut tx = outbox.begin().await.unwrap();
                let first = tx.once("billing", id).await.unwrap();
                tx.commit().await.unwrap();
                first
            });
            let waited = tokio::time::timeout(200 * MS, &mut second).await;
            assert!(waited.is_err(), "{id}: the second call did not wait: {waited:?}");
            if commit {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
            assert_eq!(second.await.unwrap(), !commit, "{id}");
        }
        assert_eq!(entries(&db).await, 2);
    }

    /// Ten consumers compete for the same hundred events.
    async fn one_of_many_concurrent_calls_is_first(|db|) {
        let other = db.another().await;
        let mut consumers = tokio::task::JoinSet::new();
        for n in 0..10u32 {
            let outbox = if n % 2 == 0 { db.outbox.clone() } else { other.outbox.clone() };
            consumers.spawn(async move {
                let mut won = 0;
                for id in 0..100u32 {
                    let id = ((id * 7 + n * 13) % 100).to_string();
                    let mut tx = outbox.begin().await.unwrap();
                    let first = tx.once("billing", &id).await.unwrap();
                    tx.commit().await.unwrap();
                    won += u32::from(first);
                }
                won
            });
        }
        assert_eq!(consumers.join_all().await.into_iter().sum::<u32>(), 100);
    }

    /// PostgreSQL turns the commit of a failed transaction into a rollback, without an error.
    async fn an_inbox_entry_is_not_lost_without_an_error(|db|) {
        let mut tx = db.outbox.begin().await.unwrap();
        assert!(tx.once("billing", "a").await.unwrap());
        DB::execute_sql(&mut tx, "INSERT INTO there_is_no_such_table VALUES (1)").await.unwrap_err();
        let committed = tx.commit().await;
        let forgotten = once(&db, "billing", "a").await;
        assert_eq!(committed.is_err(), forgotten, "{committed:?}");
    }

    async fn old_entries_are_purged_and_young_ones_stay(frozen |db|) {
        let mut tx = db.outbox.begin().await.unwrap();
        let old: Vec<String> = (0..1_200).map(|n| n.to_string()).collect();
        tx.once_each("billing", &old).await.unwrap();
        tx.commit().await.unwrap();
        db.advance(DAY);
        assert!(once(&db, "billing", "young").await);
        let admin = db.outbox.admin();
        assert_eq!(admin.purge_inbox(DAY).await.unwrap(), 0, "not older than a day");
        db.advance(SEC);
        // More than two purge batches of 500.
        assert_eq!(admin.purge_inbox(DAY).await.unwrap(), 1_200);
        assert_eq!(admin.purge_inbox(DAY).await.unwrap(), 0);
        assert!(!once(&db, "billing", "young").await);
        assert!(once(&db, "billing", "7").await, "a purged event is new again");
    }

    async fn the_relay_purges_the_inbox(frozen |db|) {
        once(&db, "billing", "old").await;
        db.advance(30 * DAY);
        once(&db, "billing", "young").await;
        db.advance(SEC);
        let often = PurgeSettings::default().every(5 * MS);
        let relay = db.outbox.multi_node().purge(often.clone()).start().await.unwrap();
        until("the old entry is purged", async || entries(&db).await <= 1).await;
        relay.stop().await.unwrap();
        assert!(!once(&db, "billing", "young").await, "thirty days by default");
        let relay = db.outbox.multi_node().purge(often.inbox_retention(MS)).start().await.unwrap();
        until("all entries are purged", async || entries(&db).await == 0).await;
        relay.stop().await.unwrap();
    }

    async fn without_its_table_the_error_says_what_to_do(|db|) {
        db.run("DROP TABLE {t}_inbox").await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        let error = tx.once("billing", "a").await.unwrap_err();
        assert!(matches!(error, Error::NotMigrated { .. }), "{error:?}");
    }
}
