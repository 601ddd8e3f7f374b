//! The product of the server behind the protocol of MySQL or PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
#[cfg(any(feature = "mysql", feature = "postgres"))]
const STANDARD: u8 = 1;
#[cfg(feature = "mysql")]
const TIDB: u8 = 2;
const DISTRIBUTED: u8 = 3;

/// The product of a store's server: the one that the protocol belongs to, or another with the same
/// protocol and fewer features. The first connection or statement of the store asks the server for
/// its version. Clones share the answer.
#[derive(Clone, Debug, Default)]
#[doc(hidden)]
pub struct Product(Arc<AtomicU8>);

impl Product {
    fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    fn set(&self, product: u8) {
        self.0.store(product, Ordering::Release);
    }

    /// Whether the server has not been asked yet.
    pub(crate) fn is_unknown(&self) -> bool {
        self.get() == UNKNOWN
    }

    /// Whether the server is known to be a distributed database with PostgreSQL's protocol: see
    /// `sql/distributed.rs`.
    pub(crate) fn is_distributed(&self) -> bool {
        self.get() == DISTRIBUTED
    }
}

#[cfg(feature = "mysql")]
impl Product {
    /// Sets the product to TiDB, without asking the server.
    pub(crate) fn tidb() -> Self {
        Self(Arc::new(AtomicU8::new(TIDB)))
    }

    /// Whether the server is known to be TiDB.
    pub(crate) fn is_tidb(&self) -> bool {
        self.get() == TIDB
    }

    /// Whether the server of this connection is TiDB. Asks the server the first time.
    pub(crate) async fn find_tidb(
        &self,
        conn: &mut sqlx::mysql::MySqlConnection,
    ) -> Result<bool, sqlx::Error> {
        if self.is_unknown() {
            let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(conn).await?;
            self.set(if names_tidb(&version) { TIDB } else { STANDARD });
        }
        Ok(self.is_tidb())
    }
}

#[cfg(feature = "postgres")]
impl Product {
    /// Sets the product to a distributed database with PostgreSQL's protocol, without asking the
    /// server.
    pub(crate) fn distributed() -> Self {
        Self(Arc::new(AtomicU8::new(DISTRIBUTED)))
    }

    /// Whether the server of this connection is a distributed database. Asks the server the first
    /// time, with a statement that is not prepared: a pooler may send the next one to another
    /// session.
    pub(crate) async fn find_distributed(
        &self,
        conn: &mut sqlx::postgres::PgConnection,
    ) -> Result<bool, sqlx::Error> {
        if self.is_unknown() {
            let row = sqlx::raw_sql("SELECT version()").fetch_one(conn).await?;
            let version: &str = sqlx::Row::try_get(&row, 0)?;
            self.set(if names_distributed(version) { DISTRIBUTED } else { STANDARD });
        }
        Ok(self.is_distributed())
    }
}

/// Whether a version is one of TiDB: `8.0.11-TiDB-v8.5.0`.
#[cfg(feature = "mysql")]
fn names_tidb(version: &str) -> bool {
    version.to_ascii_lowercase().split('-').any(|part| part == "tidb")
}

/// Whether a version is one of CockroachDB, `CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu, …)`, or
/// of YugabyteDB, `PostgreSQL 15.2-YB-2.25.1.0-b0 on x86_64-pc-linux-gnu, …`.
#[cfg(feature = "postgres")]
fn names_distributed(version: &str) -> bool {
    let version = version.to_ascii_lowercase();
    let number = version.strip_prefix("postgresql ").and_then(|rest| rest.split(' ').next());
    version.starts_with("cockroachdb")
        || number.is_some_and(|number| number.split('-').any(|part| part == "yb"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "mysql")]
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

    #[cfg(feature = "postgres")]
    #[test]
    fn a_server_is_distributed_if_its_version_says_so() {
        for version in [
            "CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu, built 2025/06/20 15:00:00, go1.23.7)",
            "CockroachDB OSS v23.1.0",
            "PostgreSQL 15.2-YB-2.25.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 17.0.6, 64-bit",
            "PostgreSQL 11.2-YB-2024.1.0.0-b0 on aarch64-unknown-linux-gnu",
        ] {
            assert!(names_distributed(version), "{version}");
        }
        for version in [
            "PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0",
            "PostgreSQL 18.1 on x86_64-pc-linux-gnu, built for x-yb-z",
            "EnterpriseDB 17.2",
            "",
        ] {
            assert!(!names_distributed(version), "{version}");
        }
    }

    #[test]
    fn a_product_that_was_forced_is_not_asked_for() {
        assert!(Product::default().is_unknown());
        #[cfg(feature = "mysql")]
        assert!(Product::tidb().is_tidb() && !Product::default().is_tidb());
        #[cfg(feature = "postgres")]
        assert!(Product::distributed().is_distributed() && !Product::default().is_distributed());
    }
}
