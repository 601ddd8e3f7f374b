//! Damage to a database's own files is found; intact tables are not reported.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

use sqlx::{MySql, Postgres, Sqlite};
use torture::arena::Arena;
use torture::integrity::damage;
use torture::state::make_tables;

#[tokio::test]
async fn a_corrupt_index_of_sqlite_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outbox.db");
    let url = format!("sqlite:{}", file.display());
    make_tables::<Sqlite>(&format!("{url}?mode=rwc"), Arena::Multi, "t_").await.unwrap();
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    for n in 0..500 {
        let insert =
            format!("INSERT INTO t_multi (event_id, event_type, payload) VALUES ('multi-{n}', 'e', '{{}}')");
        sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&pool).await.unwrap();
    }
    sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&pool).await.unwrap();
    pool.close().await;
    assert_eq!(damage::<Sqlite>(&url, Arena::Multi, "t_").await.unwrap(), Vec::<String>::new());

    // Overwrite an entry of the index of ids.
    let mut text = Vec::new();
    let mut database = std::fs::File::options().read(true).write(true).open(&file).unwrap();
    database.read_to_end(&mut text).unwrap();
    let places: Vec<usize> =
        text.windows(9).enumerate().filter(|(_, bytes)| *bytes == b"multi-321").map(|(n, _)| n).collect();
    assert_eq!(places.len(), 2, "in the table, and in the index of ids");
    for place in places.iter().take(1) {
        database.seek(SeekFrom::Start(u64::try_from(*place).unwrap())).unwrap();
        database.write_all(b"multi-xxx").unwrap();
    }
    drop(database);
    let found = damage::<Sqlite>(&url, Arena::Multi, "t_").await.unwrap();
    assert!(!found.is_empty());
}

/// A table prefix that no other test uses.
fn prefix() -> String {
    format!("i{}_{}_", std::process::id(), torture::clock::now() % 1_000_000)
}

#[tokio::test]
async fn intact_tables_of_servers_are_not_reported() {
    if let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") {
        let prefix = prefix();
        make_tables::<Postgres>(&url, Arena::Multi, &prefix).await.unwrap();
        assert_eq!(damage::<Postgres>(&url, Arena::Multi, &prefix).await.unwrap(), Vec::<String>::new());
    }
    for variable in ["OUTBOX_TEST_MARIADB", "OUTBOX_TEST_MYSQL"] {
        let Ok(url) = std::env::var(variable) else { continue };
        let prefix = prefix();
        make_tables::<MySql>(&url, Arena::Multi, &prefix).await.unwrap();
        assert_eq!(damage::<MySql>(&url, Arena::Multi, &prefix).await.unwrap(), Vec::<String>::new());
    }
}
