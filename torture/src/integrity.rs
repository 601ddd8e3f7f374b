//! Whether the database's own files are whole. A server that damages its tables, as one may whose disk was full, loses what it likes:
//! no outbox can help that, and none is blamed for it.

use std::time::Duration;

use anyhow::Result;
use outbox::StorageFault;
use sqlx::Connection as _;

use crate::arena::Arena;
use crate::database::TestDatabase;

/// How long check at one arena may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What belongs to an arena, beside the table of events itself.
const TABLES: [&str; 7] = ["", "_marker", "_ledger", "_account", "_join", "_lease", "_attempt"];

/// What is damaged of an arena's tables, as the database tells; nothing if they are whole.
pub async fn damage<DB: TestDatabase>(url: &str, arena: Arena, prefix: &str) -> Result<Vec<String>> {
    let check = async {
        let mut conn = DB::Connection::connect(url).await?;
        let mut tables = Vec::new();
        for table in TABLES.map(|rest| format!("{}{rest}", arena.table(prefix))) {
            // Not every version has all of them.
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
