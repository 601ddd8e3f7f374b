//! A short run of the torture test: some seconds, kills and cuts, no violations.

use std::path::{Path, PathBuf};
use std::time::Duration;

use torture::arena::Arena;
use torture::faults::Fault;
use torture::report;
use torture::servers::DatabaseKind;
use torture::world::{Settings, run};

/// The folder of histories: removed at the end unless there are violations, whose report names it.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

async fn survives(database: DatabaseKind, external: Option<String>, arenas: Vec<Arena>) {
    let settings = Settings {
        database,
        external,
        arenas,
        faults: vec![Fault::KillRelay, Fault::KillWriter, Fault::Cut]
            .into_iter()
            .filter(|fault| fault.applies_to(database))
            .collect(),
        seed: 1,
        // Includes the start of the processes.
        length: Duration::from_secs(15),
        rate: 10,
        // Long, so that leases do not expire because the machine is busy with other tests.
        lease: Duration::from_secs(10),
        slow: false,
        folder: folder(&format!("torture-{database}")),
        keep: false,
        program: env!("CARGO_BIN_EXE_torture").into(),
        outbox: PathBuf::new(),
        faketime: None,
        verbose: false,
    };
    let folder = settings.folder.clone();
    let outcome = run(settings).await.unwrap();
    let violations = report::violations(outcome.verdicts.values());
    assert!(outcome.is_clean(), "{violations}\nthe histories are in {}", folder.display());
    let counts = &outcome.verdicts[&Arena::Multi].counts;
    assert!(counts.delivered > 50, "too few deliveries: {counts:?}");
    assert!(outcome.faults.values().sum::<usize>() >= 2, "too few faults: {:?}", outcome.faults);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_survives_kills() {
    survives(DatabaseKind::Sqlite, None, vec![Arena::Multi]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_survives_kills_and_cuts() {
    let Some(url) = std::env::var("OUTBOX_TEST_POSTGRES").ok().filter(|url| !url.is_empty()) else {
        assert!(std::env::var("OUTBOX_TEST_REQUIRE").is_err(), "OUTBOX_TEST_POSTGRES is not set");
        return;
    };
    survives(DatabaseKind::Postgres, Some(url), vec![Arena::Multi]).await;
}
