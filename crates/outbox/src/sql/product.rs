//! Which product answers behind MySQL's protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sqlx::mysql::MySqlConnection;

const UNKNOWN: u8 = 0;
const MYSQL: u8 = 1;
const TIDB: u8 = 2;

/// Whether the server of a store is TiDB, or else MySQL or MariaDB. The first statement of the
/// store finds it out. Clones are the same.
#[derive(Clone, Debug, Default)]
#[doc(hidden)]
pub struct Product(Arc<AtomicU8>);

impl Product {
    /// Whatever the server says.
    pub(crate) fn tidb() -> Self {
        Self(Arc::new(AtomicU8::new(TIDB)))
    }

    /// Whether it was found out to be TiDB.
    pub(crate) fn is_tidb(&self) -> bool {
        self.0.load(Ordering::Acquire) == TIDB
    }

    /// Whether the server of this connection is TiDB. Asks it the first time.
    pub(crate) async fn find_tidb(&self, conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        if self.0.load(Ordering::Acquire) == UNKNOWN {
            let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(conn).await?;
            let product = if names_tidb(&version) { TIDB } else { MYSQL };
            self.0.store(product, Ordering::Release);
        }
        Ok(self.is_tidb())
    }
}

/// Whether a version is one of TiDB: `8.0.11-TiDB-v8.5.0`.
fn names_tidb(version: &str) -> bool {
    version.to_ascii_lowercase().split('-').any(|part| part == "tidb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_tidb_if_its_version_says_so() {
        for version in
            ["8.0.11-TiDB-v8.5.0", "5.7.25-TiDB-v7.1.0-serverless", "8.0.11-tidb-v9.0.0-beta.1.pre"]
        {
            assert!(names_tidb(version), "{version}");
        }
        for version in ["9.7.4-2", "10.11.19-MariaDB-0+deb12u1", "8.0.40-Vitess", "", "8.4.0-nottidb"] {
            assert!(!names_tidb(version), "{version}");
        }
    }

    #[test]
    fn a_product_that_was_forced_is_not_asked_for() {
        assert!(Product::tidb().is_tidb());
        assert!(!Product::default().is_tidb());
    }
}
