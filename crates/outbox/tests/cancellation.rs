//! Calls that their caller drops before they end, as a timeout does.

mod common;

use std::time::Duration;

use common::{Backend, TestDb, in_time, until};
use futures_util::future::join_all;
use outbox::store::Status;
use outbox::{NodeId, OutboxBuilder, WorkItem};
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(30);

/// Distance of the places at which responses are cut. Odd, so that the cuts fall on every part of
/// a packet.
const STEP: usize = 97;

/// Drops a claim while the response of the server is incomplete, at many places, on connections
/// that have prepared no statement yet. The other calls must neither wait for the rest of that
/// response nor take it for their own.
async fn cut_claims<DB: Backend>(db: &TestDb<DB>) {
    let (owner, other) = (NodeId::from("a"), NodeId::from("b"));
    let mut closing = JoinSet::new();
    for bytes in (0..).step_by(STEP) {
        db.write("e", 0..8).await;
        let held = db.outbox.queue().claim(&owner, LEASE, 8).await.unwrap();
        assert_eq!(held.len(), 8);
        db.write("e", 8..9).await;
        let (proxy, url) = db.proxied();
        let builder = OutboxBuilder::new().table(&db.table).max_connections(4);
        let outbox = DB::open(builder, &url).await.unwrap();
        let queue = outbox.queue();
        // Opens a connection.
        queue.extend(&owner, LEASE, held.iter().map(WorkItem::id)).await.unwrap();

        proxy.allow_reply_bytes(bytes);
        let cut = until("the proxy holds replies", async || proxy.is_holding_replies());
        let claimed = tokio::select! {
            claimed = queue.claim(&other, MS, 10) => Some(claimed.unwrap()),
            () = cut => None,
        };
        proxy.allow_reply_bytes(u64::MAX);

        // Concurrently, on every connection of the pool.
        let acked = join_all(held.iter().map(|item| queue.ack(&owner, [item.id()]))).await;
        assert!(acked.iter().all(|acked| matches!(acked, Ok(1))), "cut after {bytes} bytes: {acked:?}");
        for item in &held {
            assert_eq!(db.status(item.id().message()).await, Status::Done, "cut after {bytes} bytes");
        }
        // A connection whose response is incomplete is closed after a second.
        closing.spawn(async move {
            outbox.close().await;
            drop(proxy);
        });
        while db.outbox.admin().backlog().await.unwrap().pending > 0 {
            let items = db.outbox.queue().claim(&owner, LEASE, 10).await.unwrap();
            db.outbox.queue().ack(&owner, items.iter().map(WorkItem::id)).await.unwrap();
        }
        if claimed.is_some() {
            assert!(bytes > 1_000, "the response of a claim has less than {bytes} bytes");
            break;
        }
    }
    closing.join_all().await;
}

#[tokio::test]
async fn a_claim_may_be_dropped_in_the_middle_of_a_response_of_postgres() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    in_time(cut_claims(&db)).await;
}

#[tokio::test]
async fn a_claim_may_be_dropped_in_the_middle_of_a_response_of_mariadb() {
    let Some(db) = TestDb::<sqlx::MySql>::new().await else { return };
    in_time(cut_claims(&db)).await;
}
