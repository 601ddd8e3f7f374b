//! A database server crashes while events are written: confirmed events are there after its
//! restart.

use std::collections::BTreeSet;

use outbox::{Database, Event, Outbox};
use torture::guard::Guard;
use torture::servers::{DatabaseKind, Server};

async fn confirmed_events_survive_a_crash<DB: Database>(
    kind: DatabaseKind,
    open: impl AsyncFn(&str) -> outbox::Result<Outbox<DB>>,
) {
    let guard = Guard::new().unwrap();
    let mut server = Server::start(kind, &guard, false).await.unwrap();
    let outbox = open(&server.direct()).await.unwrap();
    outbox.migrate().await.unwrap();
    let (confirm, mut confirmed) = tokio::sync::watch::channel(BTreeSet::new());
    let writer = {
        let outbox = outbox.clone();
        tokio::spawn(async move {
            for number in 0_u64.. {
                let Ok(written) = outbox.send(Event::new("e").json(&number)).await else { break };
                confirm.send_modify(|ids| {
                    ids.insert(written.id);
                });
            }
        })
    };
    confirmed.wait_for(|ids| ids.len() >= 100).await.unwrap();
    server.down().await;
    // The pool would try to connect for half a minute.
    writer.abort();
    let _ = writer.await;
    let confirmed = confirmed.borrow().clone();
    server.up().await.unwrap();
    let again = open(&server.direct()).await.unwrap();
    let limit = 1_000_000;
    let stored = again.admin().list(&Default::default(), limit).await.unwrap();
    let stored: BTreeSet<_> = stored.iter().map(|event| event.event.as_ref().unwrap().id().clone()).collect();
    let lost: Vec<_> = confirmed.difference(&stored).collect();
    assert!(lost.is_empty(), "lost {} of {}: {lost:?}", lost.len(), confirmed.len());
    assert!(stored.len() <= confirmed.len() + 1, "at most the last commit got no answer");
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    assert!(here || std::env::var("OUTBOX_TEST_REQUIRE").is_err(), "{program} is not installed");
    here
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_postgres_confirmed_survive_its_crash() {
    // PostgreSQL's server programs are not on the PATH.
    if std::path::Path::new("/usr/lib/postgresql").is_dir() {
        confirmed_events_survive_a_crash(DatabaseKind::Postgres, async |url| Outbox::postgres(url).await)
            .await;
    } else {
        assert!(std::env::var("OUTBOX_TEST_REQUIRE").is_err(), "PostgreSQL is not installed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_mariadb_confirmed_survive_its_crash() {
    if is_installed("mariadb-install-db") {
        confirmed_events_survive_a_crash(DatabaseKind::Mariadb, async |url| Outbox::mysql(url).await).await;
    }
}
