//! Creating the tables, and detecting missing or newer ones.

use super::{Harness, Scene, event, leasing};
use crate::error::Error;
use crate::sql::Clock;

/// Safe at every start.
pub async fn migrating_twice_changes_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("one")).await;
    scene.store.check_schema().await.unwrap();
    scene.store.migrate().await.unwrap();
    scene.store.check_schema().await.unwrap();
    assert!(scene.find(&id).await.is_some());
    assert_eq!(scene.lease("a").await.len(), 1);
}

/// From every node concurrently.
pub async fn concurrent_migrations_succeed(harness: &impl Harness) {
    let mut nodes = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = harness.connect(Clock::Database).await;
        nodes.spawn(async move { store.migrate().await });
    }
    while let Some(migrated) = nodes.join_next().await {
        migrated.unwrap().unwrap();
    }
    let store = harness.connect(Clock::Database).await;
    store.check_schema().await.unwrap();
    store.insert(&[event("one").build().unwrap()]).await.unwrap();
    assert_eq!(store.take(&leasing("a")).await.unwrap().deliveries.len(), 1);
}

/// A typed error instead of the database's own message.
pub async fn an_unmigrated_store_returns_not_migrated(harness: &impl Harness) {
    let store = harness.connect(Clock::Database).await;
    let one = [event("one").build().unwrap()];
    for error in [
        store.check_schema().await.unwrap_err(),
        store.take(&leasing("a")).await.unwrap_err(),
        store.insert(&one).await.unwrap_err(),
        store.stats().await.unwrap_err(),
        store.reap().await.unwrap_err(),
        store.lead("purge", &"a".into(), super::LEASE).await.unwrap_err(),
        store
            .purge(crate::store::Purge {
                what: crate::store::Purgeable::Done,
                older_than: super::SECOND,
                limit: 1,
            })
            .await
            .unwrap_err(),
    ] {
        assert!(matches!(error, Error::NotMigrated { .. }), "{error:?}");
        assert!(error.to_string().contains("migrate"), "{error}");
    }
    store.migrate().await.unwrap();
    assert_eq!(store.insert(&one).await.unwrap().len(), 1, "the same connections still work");
}

/// A newer build may have changed something that this one would break.
pub async fn a_newer_schema_is_refused(harness: &impl Harness) {
    let store = harness.connect(Clock::Database).await;
    store.migrate().await.unwrap();
    if !harness.execute("UPDATE {version} SET version = 9999").await {
        return;
    }
    for error in [store.check_schema().await.unwrap_err(), store.migrate().await.unwrap_err()] {
        assert!(matches!(error, Error::SchemaTooNew { found: 9999, .. }), "{error:?}");
    }
    assert!(harness.execute("DELETE FROM {version}").await);
    assert!(matches!(store.check_schema().await.unwrap_err(), Error::NotMigrated { .. }));
    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
}
