//! The three databases, as far as SQL of our own differs.

use std::future::Future;

use outbox::{Database, Outbox, OutboxBuilder};
use sqlx::{AssertSqlSafe, MySql, Postgres, Row as _, Sqlite, raw_sql};

/// A database of which the torture test asks things.
pub trait Base: Database {
    /// Opens an outbox.
    fn open(builder: OutboxBuilder, url: &str) -> impl Future<Output = outbox::Result<Outbox<Self>>> + Send;

    /// Runs a statement.
    fn execute_sql(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// The first column of each row, which is a text.
    fn texts(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// An expression: these columns as one text, with a bar between them.
    fn line(columns: &[&str]) -> String;
}

fn concat_ws(columns: &[&str]) -> String {
    let columns: Vec<String> = columns.iter().map(|column| format!("COALESCE({column}, '')")).collect();
    format!("CONCAT_WS('|', {})", columns.join(", "))
}

macro_rules! base {
    ($db:ty, $open:ident, $line:expr) => {
        impl Base for $db {
            async fn open(builder: OutboxBuilder, url: &str) -> outbox::Result<Outbox<Self>> {
                builder.$open(url).await
            }

            async fn execute_sql(conn: &mut Self::Connection, sql: &str) -> Result<u64, sqlx::Error> {
                // Not prepared: texts that differ every time would push each other out of the cache.
                Ok(raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await?.rows_affected())
            }

            async fn texts(conn: &mut Self::Connection, sql: &str) -> Result<Vec<String>, sqlx::Error> {
                let rows = raw_sql(AssertSqlSafe(sql.to_owned())).fetch_all(conn).await?;
                rows.iter().map(|row| row.try_get(0)).collect()
            }

            fn line(columns: &[&str]) -> String {
                let line: fn(&[&str]) -> String = $line;
                line(columns)
            }
        }
    };
}

base!(Postgres, postgres, |columns| {
    let columns: Vec<String> = columns.iter().map(|column| format!("({column})::text")).collect();
    concat_ws(&columns.iter().map(String::as_str).collect::<Vec<_>>())
});
base!(MySql, mysql, |columns| format!("CAST({} AS CHAR)", concat_ws(columns)));
base!(Sqlite, sqlite, |columns| {
    let columns: Vec<String> = columns.iter().map(|column| format!("COALESCE({column}, '')")).collect();
    format!("'' || {}", columns.join(" || '|' || "))
});

/// Calls a function that is generic over the database with the one that a URL names.
#[macro_export]
macro_rules! by_url {
    ($url:expr, $function:ident :: <DB> ($($argument:expr),* $(,)?)) => {
        match $url.split(':').next() {
            Some("postgres") => $function::<sqlx::Postgres>($($argument),*).await,
            Some("mysql") => $function::<sqlx::MySql>($($argument),*).await,
            _ => $function::<sqlx::Sqlite>($($argument),*).await,
        }
    };
}
