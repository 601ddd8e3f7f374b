//! Runs the discovery query of `--discover`.

use std::str::FromStr;

use anyhow::Result;
use outbox::DatabaseKind;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _};

use crate::Usage;
use crate::database::DatabaseUrl;
use crate::target::require_sqlite_file;

/// Runs the operator's query, and reads a name and a URL from each row.
pub(super) async fn run(directory: &DatabaseUrl, query: &str) -> Result<Vec<(String, DatabaseUrl)>> {
    require_sqlite_file(directory)?;
    directory.probe().await?;
    let rows = fetch(directory, query).await.map_err(|error| explain(directory, &error))?;
    rows.into_iter()
        .map(|(name, url)| match DatabaseUrl::parse(&url) {
            Ok(url) => Ok((name, url)),
            // The URL may contain a password: not shown.
            Err(_) => Err(Usage(format!(
                "--discover: the second column of the row {name:?} is no database URL: the query must return name and URL"
            ))
            .into()),
        })
        .collect()
}

async fn fetch(directory: &DatabaseUrl, query: &str) -> Result<Vec<(String, String)>, sqlx::Error> {
    let query = AssertSqlSafe(query);
    match directory.kind() {
        DatabaseKind::Postgres => {
            let mut connection = directory.postgres()?.connect().await?;
            // In a transaction, as an unnamed statement: required behind a pooler.
            let mut tx = connection.begin().await?;
            let rows = sqlx::query_as(query).persistent(false).fetch_all(&mut *tx).await?;
            tx.commit().await?;
            Ok(rows)
        }
        DatabaseKind::MySql => {
            let mut connection = directory.mysql()?.connect().await?;
            sqlx::query_as(query).fetch_all(&mut connection).await
        }
        _ => {
            let mut connection = SqliteConnectOptions::from_str(directory.secret())?.connect().await?;
            sqlx::query_as(query).fetch_all(&mut connection).await
        }
    }
}

fn explain(directory: &DatabaseUrl, error: &sqlx::Error) -> anyhow::Error {
    match error {
        sqlx::Error::Database(why) => {
            Usage(format!("--discover: {directory} refuses the query: {}", why.message())).into()
        }
        sqlx::Error::ColumnIndexOutOfBounds { .. } | sqlx::Error::ColumnDecode { .. } => {
            Usage("--discover: the query must return two columns of text, name and URL".to_owned()).into()
        }
        other => directory.explain(other),
    }
}
