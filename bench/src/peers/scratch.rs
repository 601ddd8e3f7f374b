//! A database for one run of one peer: some peers use schemas and extensions with fixed names.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

const NAME: &str = "outbox_bench_peer";

/// A fresh database on the server of the benchmark.
pub(super) struct Scratch {
    server: String,
    url: String,
}

impl Scratch {
    /// Creates the database anew.
    pub(super) async fn create(server: &str) -> Result<Self, sqlx::Error> {
        let scratch = Self { server: server.to_owned(), url: with_database(server, NAME) };
        scratch
            .run(&[
                &format!("DROP DATABASE IF EXISTS {NAME} WITH (FORCE)"),
                &format!("CREATE DATABASE {NAME}"),
            ])
            .await?;
        Ok(scratch)
    }

    /// URL of the database.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Drops the database and closes its remaining connections.
    pub(super) async fn drop(self) -> Result<(), sqlx::Error> {
        self.run(&[&format!("DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")]).await
    }

    async fn run(&self, statements: &[&str]) -> Result<(), sqlx::Error> {
        let mut server = PgConnection::connect(&self.server).await?;
        for statement in statements {
            sqlx::query(AssertSqlSafe(*statement)).execute(&mut server).await?;
        }
        server.close().await
    }
}

/// Replaces the database of a URL. The URL that sqlx prints has parameters that other drivers
/// reject.
fn with_database(url: &str, database: &str) -> String {
    let (url, parameters) = url.split_once('?').map_or((url, None), |(url, rest)| (url, Some(rest)));
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find('/').map_or(url.len(), |at| host + at);
    let parameters = parameters.map(|rest| format!("?{rest}")).unwrap_or_default();
    format!("{}/{database}{parameters}", &url[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_a_url_is_replaced() {
        for (url, expected) in [
            ("postgres://postgres@127.0.0.1:46001/postgres", "postgres://postgres@127.0.0.1:46001/x"),
            ("postgres://me:secret@db/app?sslmode=disable", "postgres://me:secret@db/x?sslmode=disable"),
            ("postgresql://db", "postgresql://db/x"),
            ("postgres://db?host=/run/postgres", "postgres://db/x?host=/run/postgres"),
        ] {
            assert_eq!(with_database(url, "x"), expected);
        }
    }
}
