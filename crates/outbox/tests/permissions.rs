//! Permissions and encryption: the outbox needs rights on its own tables only, and uses the
//! encryption that the URL demands.
//!
//! SQLite has neither users nor network connections.

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Backend, Seen, TestDb, in_time, numbered, until};
use outbox::fleet::FleetDatabase;
use outbox::store::{AuditEntry, PageRequest, StatusGroup};
use outbox::{
    Backoff, DatabaseKind, DatabaseRole, Event, Fleet, NodeId, Outbox, OutboxBuilder, Position, Query,
    StoreOptions, SubscriptionId, Unrouted, grants_sql,
};
use sqlx::{MySql, Postgres};

const LEASE: Duration = Duration::from_secs(30);

fn is_postgres<DB: Backend>() -> bool {
    DB::NAME == <Postgres as sqlx::Database>::NAME
}

/// Creates a user with the printed rights of a role, on the outbox's own tables only; a writer also
/// gets those that are printed as comments. Returns the URL of that user.
async fn restricted_user<DB: Backend>(db: &TestDb<DB>, role: DatabaseRole) -> String {
    let (user, at) = (&db.table, db.url().rfind('@').unwrap());
    let create = if is_postgres::<DB>() { "CREATE ROLE {t} LOGIN" } else { "CREATE USER {t}" };
    db.run(create).await.unwrap();
    let kind = if is_postgres::<DB>() { DatabaseKind::Postgres } else { DatabaseKind::MySql };
    let options = StoreOptions::default().table(&db.table);
    let grants = grants_sql(kind, &options, role, user).unwrap();
    let optional = if role == DatabaseRole::Writer { "-- GRANT" } else { "GRANT" };
    let is_grant = |line: &&str| !line.starts_with("--") || line.starts_with(optional);
    for grant in grants.lines().filter(is_grant) {
        db.run(grant.trim_start_matches("-- ")).await.unwrap();
    }
    let scheme = db.url().find("://").unwrap() + 3;
    format!("{}{user}{}", &db.url()[..scheme], &db.url()[at..])
}

/// Writes events with all kinds of keys, and appends to the log.
async fn the_printed_rights_of_a_writer_are_enough<DB: Backend>() {
    let Some(db) = TestDb::<DB>::new().await else { return };
    let url = restricted_user(&db, DatabaseRole::Writer).await;
    let outbox = DB::open(OutboxBuilder::new().table(&db.table).max_connections(2), &url).await.unwrap();
    let once = || numbered("e", 1).dedup_key("once").ordering_key("k").aggregate("order", "1");
    let first = outbox.send(once()).await.unwrap();
    let second = outbox.send(once()).await.unwrap();
    assert!(first.is_new() && second.is_duplicate());
    assert_eq!(second.id, first.id);
    outbox.send_all((2..5).map(|n| numbered("e", n))).await.unwrap();
    outbox.log().append([numbered("appended", 5).tag("order", "1")]).await.unwrap();
    assert_eq!(db.status_counts().await, (4, 0, 0, 0));
    outbox.close().await;
}

/// Does everything that a program does at run time.
async fn the_printed_rights_of_a_relay_are_enough<DB: Backend>() {
    let Some(db) = TestDb::<DB>::new().await else { return };
    let url = restricted_user(&db, DatabaseRole::Relay).await;
    let outbox = DB::open(OutboxBuilder::new().table(&db.table).max_connections(4), &url).await.unwrap();

    let seen = Seen::default();
    for relay in [outbox.single_node(), outbox.multi_node(), outbox.ordered()] {
        let relay = relay
            .retry(Backoff::never())
            .unrouted(Unrouted::Dead)
            .on_type("e", seen.handler())
            .start()
            .await
            .unwrap();
        let keyed = numbered("e", 1).ordering_key("k");
        outbox.send_all([keyed, numbered("e", 2), numbered("unrouted", 3)]).await.unwrap();
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
    assert!(tx.once("me", "a").await.unwrap());
    assert_eq!(tx.once_each("me", ["a", "b"]).await.unwrap(), [false, true]);
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
        let insert = format!("INSERT INTO {}_log (event_type, tags, payload)", db.table);
        DB::execute_sql(&mut tx, &format!("{insert} VALUES ('e', ARRAY['n=1'], '1')")).await.unwrap();
    }
    tx.commit().await.unwrap();
    outbox.store().log().unwrap().advance(&mut Default::default()).await.unwrap();

    let admin = outbox.admin();
    let pending = outbox.send(numbered("work", 9)).await.unwrap().id;
    assert!(admin.cancel(&pending).await.unwrap());
    assert_eq!(admin.replay_all(&Default::default(), 10).await.unwrap(), 4);
    admin.stats().await.unwrap();
    let overview = admin.overview(100).await.unwrap();
    // The right to read the sequence of a PostgreSQL table is not granted.
    assert_eq!(overview.last_seq == 0, is_postgres::<DB>(), "{overview:?}");
    for status_group in [StatusGroup::Pending, StatusGroup::Done, StatusGroup::Dead] {
        admin.page(&PageRequest { status_group, ..PageRequest::default() }).await.unwrap();
        admin.breakdown(status_group, 10).await.unwrap();
    }
    admin.blocked_keys(10, 10).await.unwrap();
    admin.unrouted(10).await.unwrap();
    assert_eq!(admin.attempts(items[2].event().id(), 10).await.unwrap().len(), 1);
    assert_eq!(admin.purge_attempts(Duration::ZERO).await.unwrap(), 5);
    let entry = admin.audit(&AuditEntry::default()).await.unwrap();
    admin.finish_audit(entry, "done", None).await.unwrap();
    assert_eq!(admin.audits(None, 10).await.unwrap().len(), 1);
    let relay = outbox.single_node().start().await.unwrap();
    until("the relay announces itself", async || !admin.nodes().await.unwrap().is_empty()).await;
    relay.stop().await.unwrap();
    assert!(admin.purge(Duration::ZERO).await.unwrap() > 0);
    assert!(admin.purge_joins(Duration::ZERO).await.unwrap() > 0);
    assert_eq!(admin.purge_inbox(Duration::ZERO).await.unwrap(), 2);

    let (store, subscription) = (outbox.store(), SubscriptionId::new("t", "p"));
    let log = store.log().unwrap();
    log.register(&[(subscription.clone(), true)]).await.unwrap();
    assert_eq!(log.claim(&me, LEASE, std::slice::from_ref(&subscription)).await.unwrap().len(), 1);
    assert_eq!(log.tend(&me, LEASE).await.unwrap().nodes.len(), 1);
    log.release(&me, &[(subscription, 1)]).await.unwrap();
    log.leave(&me).await.unwrap();
    outbox.log_admin().pause("p").await.unwrap();
    outbox.log_admin().reset("t", "p", Position::START).await.unwrap();

    let mut tx = outbox.begin().await.unwrap();
    let made = DB::execute_sql(&mut tx, &format!("CREATE TABLE {}_more (n integer)", db.table)).await;
    assert!(made.is_err(), "the user has more rights than were granted");
    tx.rollback().await.unwrap();
}

/// Sends an event over an encrypted connection.
async fn works_encrypted<DB: Backend>(outbox: &Outbox<DB>) {
    outbox.send(Event::new("e").json(&1)).await.unwrap();
    let encrypted = if is_postgres::<DB>() {
        "SELECT count(*) FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl"
    } else {
        // MariaDB reads the first of these comments, MySQL the second.
        "SELECT count(*) FROM /*M! information_schema. */ /*!80000 performance_schema. */ session_status \
         WHERE variable_name = 'Ssl_cipher' AND variable_value <> ''"
    };
    let mut conn = outbox.pool().acquire().await.unwrap();
    assert_eq!(DB::number(&mut conn, encrypted).await, 1, "a plain connection");
}

/// A server that cannot encrypt is an error, not a plain connection.
async fn a_url_that_demands_encryption_gets_it_or_an_error<DB: Backend>() {
    let Some(db) = TestDb::<DB>::new().await else { return };
    let demand = if is_postgres::<DB>() { "sslmode=require" } else { "ssl-mode=REQUIRED" };
    let url = format!("{}?{demand}", db.url());
    match DB::open(OutboxBuilder::new().table(&db.table), &url).await {
        Ok(outbox) => works_encrypted(&outbox).await,
        Err(error) => {
            let message = format!("{error} {error:?}");
            assert!(message.contains("server does not support TLS"), "{message}");
        }
    }
}

/// A resolver resolves 127.1 to this machine; the rule for local addresses treats it as any other
/// name.
async fn a_remote_server_is_verified_unless_the_url_says_otherwise<DB: Backend>() {
    let Some(db) = TestDb::<DB>::new().await else { return };
    let url = db.url().replacen("@127.0.0.1:", "@127.1:", 1);
    if url == db.url() {
        return;
    }
    let builder = || OutboxBuilder::new().table(&db.table);
    let refused = DB::open(builder(), &url).await.unwrap_err().to_string();
    assert!(refused.contains("TLS") && refused.contains("sslmode=disable"), "{refused}");
    let database = FleetDatabase::new("elsewhere", &url).table(&db.table);
    let fleet = Fleet::builder().databases([database]).open().await.unwrap();
    let refused = fleet.store("elsewhere").unwrap().stats().await.unwrap_err().to_string();
    assert!(refused.contains("TLS"), "{refused}");

    let plain = if is_postgres::<DB>() { "sslmode=disable" } else { "ssl-mode=DISABLED" };
    let outbox = DB::open(builder(), &format!("{url}?{plain}")).await.unwrap();
    outbox.send(Event::new("e").json(&1)).await.unwrap();
}

/// The certificate of this server is issued by an authority that is not trusted here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_be_verified_is_refused_until_its_authority_is_named() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let plan = outbox_testbed::Plan::pgbouncer(db.url()).tls();
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let open = |parameters: String| {
        let url = format!("{}?{parameters}", server.url());
        let table = db.table.clone();
        async move { OutboxBuilder::new().table(table).postgres(&url).await }
    };
    let refused = open("sslmode=verify-full".to_owned()).await.unwrap_err().to_string();
    assert!(refused.contains("certificate") && refused.contains("sslrootcert=FILE"), "{refused}");
    let plain = open("sslmode=disable".to_owned()).await;
    assert!(plain.is_err(), "the server accepts no connection without TLS");
    let ca = server.ca_file();
    let outbox = open(format!("sslmode=verify-full&sslrootcert={}", ca.display())).await.unwrap();
    outbox.send(Event::new("e").json(&1)).await.unwrap();
}

/// File of the authority that issued the server's certificate; `None` if the server names no such
/// file on this machine. The certificate is for `localhost` and 127.0.0.1.
async fn authority(db: &TestDb<MySql>) -> Option<PathBuf> {
    let query = "SELECT COALESCE(@@ssl_ca, '')";
    let file: String = sqlx::query_scalar(query).fetch_one(db.outbox.pool()).await.unwrap();
    let file = PathBuf::from(file);
    if file.is_absolute() && file.is_file() {
        return Some(file);
    }
    assert!(std::env::var("OUTBOX_TEST_REQUIRE").is_err(), "the server has no TLS: @@ssl_ca is {file:?}");
    None
}

/// URLs of a server that are accepted, and URLs that are refused, with a part of the reason.
/// 0.0.0.0 connects to this machine, and is not a name in its certificate.
fn verified_urls(url: &str, ca: &Path, other_ca: &Path) -> (Vec<String>, Vec<(String, &'static str)>) {
    let elsewhere = url.replacen("@127.0.0.1:", "@0.0.0.0:", 1);
    assert_ne!(url, elsewhere, "a server on 127.0.0.1");
    let with = |url: &str, mode: &str, ca: &Path| format!("{url}?ssl-mode={mode}&ssl-ca={}", ca.display());
    let accepted =
        vec![with(url, "VERIFY_CA", ca), with(url, "VERIFY_IDENTITY", ca), with(&elsewhere, "VERIFY_CA", ca)];
    let refused = vec![
        (format!("{url}?ssl-mode=VERIFY_CA"), "UnknownIssuer"),
        (format!("{url}?ssl-mode=VERIFY_IDENTITY"), "UnknownIssuer"),
        (with(url, "VERIFY_CA", other_ca), "BadSignature"),
        (with(&elsewhere, "VERIFY_IDENTITY", ca), "not valid for name"),
        // The name of a remote server is verified unless the URL says otherwise.
        (format!("{elsewhere}?ssl-ca={}", ca.display()), "not valid for name"),
    ];
    (accepted, refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authority_and_name_of_a_server_are_verified_on_mariadb() {
    let Some(db) = TestDb::<MySql>::new().await else { return };
    let Some(ca) = authority(&db).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let other_ca = outbox_testbed::Certificates::make(folder.path()).ca;
    let (accepted, refused) = verified_urls(db.url(), &ca, &other_ca);
    for url in &accepted {
        let outbox = OutboxBuilder::new().table(&db.table).mysql(url).await;
        works_encrypted(&outbox.unwrap_or_else(|error| panic!("{url}: {error}"))).await;
    }
    for (url, reason) in &refused {
        let error = OutboxBuilder::new().table(&db.table).mysql(url).await.unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("ssl-ca=FILE"), "{url}: {error}");
    }
}

/// A database whose certificate is refused does not affect the other databases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authority_and_name_of_each_server_of_a_fleet_are_verified_on_mariadb() {
    let Some(db) = TestDb::<MySql>::new().await else { return };
    let Some(ca) = authority(&db).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let other_ca = outbox_testbed::Certificates::make(folder.path()).ca;
    let (accepted, refused) = verified_urls(db.url(), &ca, &other_ca);
    let urls = accepted.iter().chain(refused.iter().map(|(url, _)| url));
    let name = |n: usize| format!("db-{n}");
    let databases = urls.enumerate().map(|(n, url)| FleetDatabase::new(name(n), url).table(&db.table));
    let fleet = Fleet::builder().databases(databases).open().await.unwrap();
    for n in 0..accepted.len() {
        fleet.outbox::<MySql>(&name(n)).unwrap().send(Event::new("e").json(&1)).await.unwrap();
    }
    for (n, (url, reason)) in refused.iter().enumerate() {
        let store = fleet.store(name(accepted.len() + n)).unwrap();
        let error = store.stats().await.unwrap_err().to_string();
        assert!(error.contains(reason), "{url}: {error}");
    }
    assert_eq!(db.status_counts().await.0, accepted.len() as u64);
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
    the_printed_rights_of_a_writer_are_enough
    the_printed_rights_of_a_relay_are_enough
    a_url_that_demands_encryption_gets_it_or_an_error
    a_remote_server_is_verified_unless_the_url_says_otherwise
}
