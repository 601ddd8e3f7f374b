//! Discovery of databases by a query.

use std::str::FromStr;

use anyhow::anyhow;
use async_trait::async_trait;
use outbox::DatabaseKind;
use outbox::fleet::{Discovery, FleetDatabase};
use outbox_transports::Text;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use crate::config::AllowedKind;
use crate::database::DatabaseUrl;

/// A query that returns a name and a URL for each database.
pub(crate) struct DiscoveryQuery {
    url: DatabaseUrl,
    query: String,
    allowed: Allowed,
}

/// Databases that rows may name. The writers of the directory choose the databases that the relay
/// opens, within these limits.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    kinds: Vec<AllowedKind>,
    hosts: Option<Vec<String>>,
}

impl Allowed {
    pub(crate) fn new(kinds: &[AllowedKind], hosts: Option<&[Text]>) -> Self {
        let hosts = hosts.map(|hosts| hosts.iter().map(|host| host.as_str().to_owned()).collect());
        Self { kinds: kinds.to_vec(), hosts }
    }

    /// Why a URL is not allowed. Does not contain the URL, which may have a password.
    fn refusal(&self, url: &str) -> Option<&'static str> {
        let Ok(parsed) = DatabaseUrl::parse(url) else { return Some("its URL is invalid") };
        // Parsed as by the driver: a parameter may name another host than the authority of the URL.
        let (kind, host) = match parsed.kind() {
            DatabaseKind::Postgres => {
                let Ok(options) = PgConnectOptions::from_str(url) else {
                    return Some("its URL is invalid");
                };
                let is_socket = options.get_socket().is_some();
                (AllowedKind::Postgres, (!is_socket).then(|| options.get_host().to_owned()))
            }
            DatabaseKind::MySql => {
                let url = url.replacen("mariadb:", "mysql:", 1);
                let Ok(options) = MySqlConnectOptions::from_str(&url) else {
                    return Some("its URL is invalid");
                };
                let is_socket = options.get_socket().is_some();
                (AllowedKind::MySql, (!is_socket).then(|| options.get_host().to_owned()))
            }
            _ => (AllowedKind::Sqlite, None),
        };
        if !self.kinds.contains(&kind) {
            return Some("`allow` of `[discovery]` does not name its kind of database");
        }
        let is_listed = |hosts: &Vec<String>| {
            kind == AllowedKind::Sqlite
                || host.as_deref().is_some_and(|host| hosts.iter().any(|of| is_host(of, host)))
        };
        let listed = self.hosts.as_ref().is_none_or(is_listed);
        (!listed).then_some("`hosts` of `[discovery]` does not name its host")
    }
}

/// Whether a host matches a pattern: `*.db.internal` stands for every name under `db.internal`.
fn is_host(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(end) if end.starts_with('.') => {
            let (host, end) = (host.to_ascii_lowercase(), end.to_ascii_lowercase());
            host.strip_suffix(&end).is_some_and(|name| !name.is_empty())
        }
        _ => pattern.eq_ignore_ascii_case(host),
    }
}

type Rows = Vec<(String, String)>;

impl DiscoveryQuery {
    pub(crate) fn new(url: DatabaseUrl, query: &str, allowed: Allowed) -> Self {
        Self { url, query: query.to_owned(), allowed }
    }

    /// Runs the query. Returns the allowed databases, and the names of the others with the reason.
    pub(crate) async fn run(&self) -> Result<(Rows, Vec<(String, &'static str)>), sqlx::Error> {
        let (mut rows, mut refused) = (Rows::new(), Vec::new());
        for (name, url) in self.fetch().await? {
            match self.allowed.refusal(&url) {
                None => rows.push((name, url)),
                Some(reason) => refused.push((name, reason)),
            }
        }
        Ok((rows, refused))
    }

    /// Uses a new connection each time: the query runs every few minutes.
    async fn fetch(&self) -> Result<Rows, sqlx::Error> {
        // The operator's own statement.
        let query = AssertSqlSafe(self.query.clone());
        match self.url.kind() {
            DatabaseKind::Postgres => {
                let mut connection = self.url.postgres()?.connect().await?;
                // In a transaction, as an unnamed statement: required behind a pooler.
                let mut tx = connection.begin().await?;
                let rows = sqlx::query_as(query).persistent(false).fetch_all(&mut *tx).await?;
                tx.commit().await?;
                connection.close().await?;
                Ok(rows)
            }
            DatabaseKind::MySql => {
                let mut connection = self.url.mysql()?.connect().await?;
                let rows = sqlx::query_as(query).fetch_all(&mut connection).await?;
                connection.close().await?;
                Ok(rows)
            }
            _ => {
                let mut connection = SqliteConnectOptions::from_str(self.url.secret())?.connect().await?;
                let rows = sqlx::query_as(query).fetch_all(&mut connection).await?;
                connection.close().await?;
                Ok(rows)
            }
        }
    }
}

impl DiscoveryQuery {
    /// Turns an error of the query into one with a hint.
    pub(crate) fn explain(&self, error: &sqlx::Error) -> anyhow::Error {
        match error {
            // The database's message describes the mistake in the query.
            sqlx::Error::Database(why) => anyhow!("{} refuses the query: {}", self.url, why.message()),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnIndexOutOfBounds { .. } => {
                anyhow!("the query of `[discovery]` must return two text columns, name and URL: {error}")
            }
            _ => self.url.explain(error),
        }
    }
}

#[async_trait]
impl Discovery for DiscoveryQuery {
    async fn discover(&self) -> Result<Vec<FleetDatabase>, Box<dyn std::error::Error + Send + Sync>> {
        let (rows, refused) = self.run().await.map_err(|error| format!("{:#}", self.explain(&error)))?;
        for (name, reason) in refused {
            tracing::warn!(name, reason, "discovered database refused");
        }
        Ok(rows.into_iter().map(|(name, url)| FleetDatabase::new(name, url)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_databases_are_accepted() {
        let servers = Allowed { kinds: vec![AllowedKind::Postgres, AllowedKind::MySql], hosts: None };
        assert_eq!(servers.refusal("postgres://shop:s3cret@db/acme"), None);
        assert_eq!(servers.refusal("mariadb://shop@db/acme"), None);
        for url in ["sqlite:/etc/passwd", "sqlite::memory:", "file:///x", "http://db/x", ""] {
            assert!(servers.refusal(url).is_some(), "{url}");
        }
        let files = Allowed { kinds: vec![AllowedKind::Sqlite], hosts: Some(Vec::new()) };
        assert_eq!(files.refusal("sqlite:a.db"), None);
        assert!(files.refusal("postgres://db/x").is_some());
        let hosts = ["db1", "*.db.internal"].map(str::to_owned).to_vec();
        let some = Allowed { kinds: vec![AllowedKind::Postgres, AllowedKind::MySql], hosts: Some(hosts) };
        for url in ["postgres://DB1:5433/x", "mysql://u:p@a.db.internal/x"] {
            assert_eq!(some.refusal(url), None, "{url}");
        }
        for url in [
            "postgres://db2/x",
            "postgres://db.internal/x",
            "postgres://xdb.internal/x",
            "postgres://db1/x?host=evil.example",
            "postgres://db1/x?host=/var/run/postgresql",
            "mysql://evil.example/x",
        ] {
            assert!(some.refusal(url).is_some(), "{url}");
        }
    }
}
