//! A database for one run of one peer: some live in schemas and extensions whose names are not theirs to choose.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

const NAME: &str = "outbox_bench_peer";

/// A fresh database on the server of the benchmark.
pub(super) struct Scratch {
    server: String,
    url: String,
}

impl Scratch {
    /// Makes it, from nothing.
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

    /// Where it is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Drops it, whoever is still connected.
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

/// The URL with another database. By hand, because what sqlx prints has parameters that other drivers refuse.
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
    fn only_the_database_of_a_url_is_exchanged() {
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
