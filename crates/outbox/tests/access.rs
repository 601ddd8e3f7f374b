//! What the outbox needs of a server: rights on its tables and no others, and the encryption that the URL demands.
//!
//! SQLite has neither users nor a wire.

mod bed;

use std::time::Duration;

use bed::{Base, Bed, Seen, in_time, numbered};
use outbox::store::{Deed, PageAsk, Shelf};
use outbox::{Backoff, Event, NodeId, OutboxBuilder, PairId, Position, Query};
use sqlx::{MySql, Postgres};

const LEASE: Duration = Duration::from_secs(30);

fn is_postgres<DB: Base>() -> bool {
    DB::NAME == <Postgres as sqlx::Database>::NAME
}

/// A user who may SELECT, INSERT, UPDATE and DELETE, in the outbox's own tables and nowhere else. Returns its URL.
async fn modest_user<DB: Base>(bed: &Bed<DB>) -> String {
    let (user, at) = (&bed.table, bed.url().rfind('@').unwrap());
    let create = if is_postgres::<DB>() { "CREATE ROLE {t} LOGIN" } else { "CREATE USER {t}" };
    bed.run(create).await.unwrap();
    let common = [
        "",
        "_lease",
        "_schema",
        "_join",
        "_join_member",
        "_inbox",
        "_log",
        "_log_tag",
        "_topic_progress",
        "_node",
        "_attempt",
        "_audit",
    ];
    let own: &[&str] = if is_postgres::<DB>() { &["_batch"] } else { &["_key", "_log_head"] };
    for table in common.iter().chain(own) {
        let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {{t}}{table} TO {{t}}");
        bed.run(&grant).await.unwrap();
    }
    if is_postgres::<DB>() {
        bed.run("GRANT SELECT, USAGE ON SEQUENCE {t}_log_seq TO {t}").await.unwrap();
    }
    let scheme = bed.url().find("://").unwrap() + 3;
    format!("{}{user}{}", &bed.url()[..scheme], &bed.url()[at..])
}

/// Everything that a program does at run time.
async fn four_rights_on_its_tables_are_enough<DB: Base>() {
    let Some(bed) = Bed::<DB>::new().await else { return };
    let url = modest_user(&bed).await;
    let outbox = DB::open(OutboxBuilder::new().table(&bed.table).max_connections(4), &url).await.unwrap();

    let seen = Seen::default();
    for relay in [outbox.single_node(), outbox.multi_node(), outbox.ordered()] {
        let relay = relay.retry(Backoff::never()).on_type("e", seen.handler()).start().await.unwrap();
        let keyed = numbered("e", 1).ordering_key("k");
        outbox.send_all([keyed, numbered("e", 2), numbered("nobody's", 3)]).await.unwrap();
        outbox.fan_out([numbered("e", 4), numbered("e", 5)]).then(numbered("e", 6)).send().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
    }
    assert_eq!(seen.count(), 15);

    let (queue, me) = (outbox.queue(), NodeId::from("me"));
    outbox.send_all((0..4).map(|n| numbered("work", n).dedup_key(format!("key-{n}")))).await.unwrap();
    let items = queue.claim(&me, LEASE, 10).await.unwrap();
    assert_eq!(queue.extend(&me, LEASE, items.iter().map(outbox::WorkItem::id)).await.unwrap().len(), 4);
    assert_eq!(queue.ack(&me, [items[0].id()]).await.unwrap(), 1);
    assert_eq!(queue.abandon(&me, [items[1].id()], "no").await.unwrap(), 1);
    assert_eq!(queue.fail(&me, [items[2].id()], "no").await.unwrap(), 1);
    assert_eq!(queue.release(&me, [items[3].id()]).await.unwrap(), 1);
    queue.reap_expired().await.unwrap();

    let mut tx = outbox.begin().await.unwrap();
    assert!(outbox.once(&mut tx, "me", "a").await.unwrap());
    assert_eq!(outbox.once_each(&mut tx, "me", ["a", "b"]).await.unwrap(), [false, true]);
    tx.commit().await.unwrap();

    let (log, query) = (outbox.log(), Query::tag("n", 1));
    let read = log.project(query.clone(), 0, |n, _| n + 1).await.unwrap();
    let tagged = || numbered("e", 1).tag("n", 1);
    assert!(log.append_if([tagged()], read.unchanged()).await.is_ok());
    assert!(log.append_if([tagged()], read.unchanged()).await.is_err());
    let mut tx = outbox.begin().await.unwrap();
    assert_eq!(tx.project(query, 0, |n, _| n + 1).await.unwrap().state, 1);
    tx.append([tagged()]).await.unwrap();
    if is_postgres::<DB>() {
        let insert = format!("INSERT INTO {}_log (event_type, tags, payload)", bed.table);
        DB::execute_sql(&mut tx, &format!("{insert} VALUES ('e', ARRAY['n=1'], '1')")).await.unwrap();
    }
    tx.commit().await.unwrap();
    outbox.store().log().unwrap().advance(&mut Default::default()).await.unwrap();

    let admin = outbox.admin();
    let pending = outbox.send(numbered("work", 9)).await.unwrap().unwrap();
    assert!(admin.cancel(&pending).await.unwrap());
    assert_eq!(admin.replay_all(&Default::default(), 10).await.unwrap(), 4);
    admin.stats().await.unwrap();
    let overview = admin.overview(100).await.unwrap();
    // The right to the sequence of a PostgreSQL table is not part of the four.
    assert_eq!(overview.last_seq == 0, is_postgres::<DB>(), "{overview:?}");
    for shelf in [Shelf::Pending, Shelf::Done, Shelf::Dead] {
        admin.page(&PageAsk { shelf, ..PageAsk::default() }).await.unwrap();
        admin.breakdown(shelf, 10).await.unwrap();
    }
    admin.blocked_keys(10, 10).await.unwrap();
    assert_eq!(admin.attempts(items[2].event().id(), 10).await.unwrap().len(), 1);
    assert_eq!(admin.purge_attempts(Duration::ZERO).await.unwrap(), 5);
    let deed = admin.audit(&Deed::default()).await.unwrap();
    admin.audited(deed, "done", None).await.unwrap();
    assert_eq!(admin.audits(None, 10).await.unwrap().len(), 1);
    let relay = outbox.single_node().start().await.unwrap();
    in_time(async {
        while admin.nodes().await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    relay.stop().await.unwrap();
    assert!(admin.purge(Duration::ZERO).await.unwrap() > 0);
    assert!(admin.purge_joins(Duration::ZERO).await.unwrap() > 0);
    assert_eq!(admin.purge_inbox(Duration::ZERO).await.unwrap(), 2);

    let (store, pair) = (outbox.store(), PairId::new("t", "p"));
    let log = store.log().unwrap();
    log.register(&[(pair.clone(), true)]).await.unwrap();
    assert_eq!(log.claim(&me, LEASE, std::slice::from_ref(&pair)).await.unwrap().len(), 1);
    assert_eq!(log.tend(&me, LEASE).await.unwrap().nodes.len(), 1);
    log.release(&me, &[(pair, 1)]).await.unwrap();
    log.leave(&me).await.unwrap();
    outbox.log_admin().pause("p").await.unwrap();
    outbox.log_admin().reset("t", "p", Position::START).await.unwrap();

    let mut tx = outbox.begin().await.unwrap();
    let made = DB::execute_sql(&mut tx, &format!("CREATE TABLE {}_more (n integer)", bed.table)).await;
    assert!(made.is_err(), "the user could do more than it was given");
    tx.rollback().await.unwrap();
}

/// With a server that cannot encrypt, that is an error and not a plain connection.
async fn a_url_that_demands_encryption_gets_it_or_an_error<DB: Base>() {
    let Some(bed) = Bed::<DB>::new().await else { return };
    let (demand, encrypted) = if is_postgres::<DB>() {
        ("sslmode=require", "SELECT count(*) FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl")
    } else {
        (
            "ssl-mode=REQUIRED",
            "SELECT count(*) FROM information_schema.session_status \
             WHERE variable_name = 'Ssl_cipher' AND variable_value <> ''",
        )
    };
    let url = format!("{}?{demand}", bed.url());
    match DB::open(OutboxBuilder::new().table(&bed.table), &url).await {
        Ok(outbox) => {
            outbox.send(Event::new("e").json(&1)).await.unwrap();
            let mut conn = outbox.pool().acquire().await.unwrap();
            assert_eq!(DB::number(&mut conn, encrypted).await, 1, "a plain connection");
        }
        Err(error) => {
            let said = format!("{error} {error:?}");
            assert!(said.contains("server does not support TLS"), "{said}");
        }
    }
}

macro_rules! on_every_server {
    ($($sentence:ident)+) => {$(
        mod $sentence {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                in_time(super::$sentence::<Postgres>()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mariadb() {
                in_time(super::$sentence::<MySql>()).await;
            }
        }
    )+};
}

on_every_server! {
    four_rights_on_its_tables_are_enough
    a_url_that_demands_encryption_gets_it_or_an_error
}
