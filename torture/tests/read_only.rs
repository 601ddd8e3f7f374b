//! A MariaDB server becomes read-only for a while: no event is handled twice, and the relay resumes
//! by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox::store::RelayTask;
use outbox::{Context, Error, Event, Outbox, StorageFault};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};
use tokio::sync::Semaphore;
use torture::guard::Guard;
use torture::servers::{DatabaseKind, Server};

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..3_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 30 s: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_on_mariadb_resumes_when_the_server_is_writable_again() {
    let installed = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join("mariadb-install-db").is_file());
    if !installed {
        assert!(std::env::var("OUTBOX_TEST_REQUIRE").is_err(), "MariaDB is not installed");
        return;
    }
    let guard = Guard::new().unwrap();
    let server = Server::start(DatabaseKind::Mariadb, &guard, false).await.unwrap();
    let mut root = MySqlConnection::connect(&server.direct()).await.unwrap();
    let mut run =
        async |sql: &str| sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut root).await.unwrap();
    // A user with all privileges may write although the server is read-only.
    run("CREATE USER relay@'127.0.0.1'").await;
    run("GRANT ALL ON test.* TO relay@'127.0.0.1'").await;
    let outbox = Outbox::mysql(&server.direct().replace("root@", "relay@")).await.unwrap();
    outbox.migrate().await.unwrap();
    let (handled, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (counted, opened) = (handled.clone(), gate.clone());
    let handler = move |_: Context| {
        let (handled, gate) = (counted.clone(), opened.clone());
        async move {
            handled.fetch_add(1, Ordering::SeqCst);
            let _ = gate.acquire().await;
        }
    };
    let relay = outbox.multi_node().on_type("e", handler).start().await.unwrap();
    outbox.send_all((0..3).map(|n| Event::new("e").json(&n))).await.unwrap();
    until("all are being handled", async || handled.load(Ordering::SeqCst) == 3).await;
    run("SET GLOBAL read_only = 1").await;
    let Err(Error::Database(error)) = outbox.send(Event::new("e").json(&4)).await else {
        panic!("it was written")
    };
    assert_eq!(error.storage_fault(), Some(StorageFault::ReadOnly), "{error}");
    gate.close();
    until("settlements are refused", async || relay.health().problem(RelayTask::Settle).is_some()).await;
    assert_eq!(outbox.admin().stats().await.unwrap().done, 0);
    run("SET GLOBAL read_only = 0").await;
    until("all are settled", async || outbox.admin().stats().await.is_ok_and(|stats| stats.done == 3)).await;
    assert_eq!(handled.load(Ordering::SeqCst), 3, "once each");
    relay.stop().await.unwrap();
}
