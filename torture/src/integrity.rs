//! Checks the database's own files for damage. A server can corrupt its tables, for example after
//! its disk was full; events lost that way are not the outbox's fault and are not reported as
//! violations.

use std::time::Duration;

use anyhow::Result;
use outbox::StorageFault;
use sqlx::Connection as _;

use crate::arena::Arena;
use crate::database::TestDatabase;

/// Time limit for the check of one arena.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Suffixes of the checked tables of an arena; the empty one is the table of events.
const TABLES: [&str; 7] = ["", "_marker", "_ledger", "_account", "_join", "_lease", "_attempt"];

/// Describes all damage to an arena's tables that the database reports; empty if they are intact.
pub async fn damage<DB: TestDatabase>(url: &str, arena: Arena, prefix: &str) -> Result<Vec<String>> {
    let check = async {
        let mut conn = DB::Connection::connect(url).await?;
        let mut tables = Vec::new();
        for table in TABLES.map(|rest| format!("{}{rest}", arena.table(prefix))) {
            // Not every schema version has all of these tables.
            if !DB::texts(&mut conn, &DB::columns_sql(&table)).await?.is_empty() {
                tables.push(table);
            }
        }
        match DB::damage(&mut conn, &tables).await {
            Ok(damage) => Ok(damage),
            Err(error) => {
                let error = outbox::DatabaseError::from(error);
                let corrupt = error.storage_fault() == Some(StorageFault::Corrupt);
                if corrupt { Ok(vec![error.to_string()]) } else { Err(anyhow::Error::from(error)) }
            }
        }
    };
    tokio::time::timeout(TIMEOUT, check).await?
}
