//! Databases that a query names.

use std::str::FromStr;

use anyhow::anyhow;
use async_trait::async_trait;
use outbox::DatabaseKind;
use outbox::fleet::{Discovery, FleetDatabase};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use crate::database::DatabaseUrl;

/// A query whose rows are databases: a name and a URL each.
pub(crate) struct Query {
    url: DatabaseUrl,
    query: String,
}

type Rows = Vec<(String, String)>;

impl Query {
    pub(crate) fn new(url: DatabaseUrl, query: &str) -> Self {
        Self { url, query: query.to_owned() }
    }

    /// On a connection of its own: it is asked every few minutes.
    pub(crate) async fn ask(&self) -> Result<Rows, sqlx::Error> {
        // It is the operator's own statement.
        let query = AssertSqlSafe(self.query.clone());
        let url = self.url.secret();
        match self.url.kind() {
            DatabaseKind::Postgres => {
                let mut connection = PgConnectOptions::from_str(url)?.connect().await?;
                let rows = sqlx::query_as(query).fetch_all(&mut connection).await?;
                connection.close().await?;
                Ok(rows)
            }
            DatabaseKind::MySql => {
                let url = url.replacen("mariadb:", "mysql:", 1);
                let mut connection = MySqlConnectOptions::from_str(&url)?.connect().await?;
                let rows = sqlx::query_as(query).fetch_all(&mut connection).await?;
                connection.close().await?;
                Ok(rows)
            }
            _ => {
                let mut connection = SqliteConnectOptions::from_str(url)?.connect().await?;
                let rows = sqlx::query_as(query).fetch_all(&mut connection).await?;
                connection.close().await?;
                Ok(rows)
            }
        }
    }
}

impl Query {
    /// What an error means for whoever wrote the query.
    pub(crate) fn explain(&self, error: &sqlx::Error) -> anyhow::Error {
        match error {
            // The database's own word: what is wrong with the query.
            sqlx::Error::Database(why) => anyhow!("{} refuses the query: {}", self.url, why.message()),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnIndexOutOfBounds { .. } => {
                anyhow!("the query of `[discovery]` must give two texts a row, a name and a URL: {error}")
            }
            _ => self.url.explain(error),
        }
    }
}

#[async_trait]
impl Discovery for Query {
    async fn discover(&self) -> Result<Vec<FleetDatabase>, Box<dyn std::error::Error + Send + Sync>> {
        let rows = self.ask().await.map_err(|error| format!("{:#}", self.explain(&error)))?;
        Ok(rows.into_iter().map(|(name, url)| FleetDatabase::new(name, url)).collect())
    }
}
