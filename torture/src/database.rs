//! The three databases, as far as the torture test's own SQL differs.

use std::future::Future;

use outbox::{Database, Outbox, OutboxBuilder};
use sqlx::{AssertSqlSafe, MySql, Postgres, Row as _, Sqlite, raw_sql};

/// A database that the torture test queries directly.
pub trait TestDatabase: Database {
    /// Opens an outbox.
    fn open(builder: OutboxBuilder, url: &str) -> impl Future<Output = outbox::Result<Outbox<Self>>> + Send;

    /// Runs a statement.
    fn execute_sql(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Runs a query and returns the first column of each row, as text.
    fn texts(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// A SQL expression: these columns as one text, separated by bars.
    fn line(columns: &[&str]) -> String;

    /// A query for the writable columns of a table, as rows of `name|type`.
    fn columns_sql(table: &str) -> String;

    /// Checks these tables for damage; returns a description of each damage found.
    fn damage(
        conn: &mut Self::Connection,
        tables: &[String],
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// Boundary values of timestamps.
    const TIMES: &'static [&'static str];

    /// Boundary values of bytes.
    const BYTES: &'static [&'static str];

    /// A statement that makes the session accept more of the boundary values.
    const LENIENT: &'static str;

    /// A text as a SQL literal.
    fn quoted(text: &str) -> String {
        format!("'{}'", text.replace('\'', "''"))
    }

    /// A SQL expression: a text of this many bytes.
    fn repeated(bytes: u32) -> String {
        format!("REPEAT('x', {bytes})")
    }

    /// A SQL expression: these texts concatenated.
    fn joined(texts: &[&str]) -> String {
        format!("CONCAT({})", texts.join(", "))
    }
}

/// A writable column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Type of its values.
    pub kind: ColumnType,
}

/// Type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// A text, or JSON.
    Text,
    /// A number.
    Int,
    /// A time.
    Time,
    /// Bytes.
    Bytes,
    /// True or false.
    Bool,
    /// Something else.
    Other,
}

impl ColumnType {
    /// Derives the type from the database's type name and from the column's name, since SQLite
    /// stores timestamps as text.
    fn of(column: &str, name: &str) -> Self {
        let name = name.to_lowercase();
        let has = |part: &str| name.contains(part);
        if has("time") || column.ends_with("_at") || column.ends_with("_until") {
            Self::Time
        } else if has("int") {
            Self::Int
        } else if has("blob") || has("bytea") {
            Self::Bytes
        } else if has("bool") {
            Self::Bool
        } else if has("char") || has("text") || has("json") {
            Self::Text
        } else {
            Self::Other
        }
    }
}

/// Reads the writable columns of a table.
pub async fn columns<DB: TestDatabase>(
    conn: &mut DB::Connection,
    table: &str,
) -> Result<Vec<Column>, sqlx::Error> {
    let lines = DB::texts(conn, &DB::columns_sql(table)).await?;
    let column = |line: &String| {
        let (name, kind) = line.split_once('|')?;
        Some(Column { name: name.to_owned(), kind: ColumnType::of(name, kind) })
    };
    Ok(lines.iter().filter_map(column).collect())
}

fn concat_ws(columns: &[&str]) -> String {
    let columns: Vec<String> = columns.iter().map(|column| format!("COALESCE({column}, '')")).collect();
    format!("CONCAT_WS('|', {})", columns.join(", "))
}

macro_rules! test_database {
    ($db:ty, $open:ident, $line:expr, { $($rest:tt)* }) => {
        impl TestDatabase for $db {
            $($rest)*

            async fn open(builder: OutboxBuilder, url: &str) -> outbox::Result<Outbox<Self>> {
                builder.$open(url).await
            }

            async fn execute_sql(conn: &mut Self::Connection, sql: &str) -> Result<u64, sqlx::Error> {
                // Not prepared: statements that differ every time would evict each other from the
                // cache.
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

test_database!(
    Postgres,
    postgres,
    |columns| {
        let columns: Vec<String> = columns.iter().map(|column| format!("({column})::text")).collect();
        concat_ws(&columns.iter().map(String::as_str).collect::<Vec<_>>())
    },
    {
        const TIMES: &'static [&'static str] = &[
            "NULL",
            "'infinity'",
            "'-infinity'",
            "'4713-01-01 00:00:00+00 BC'",
            "'294276-12-31 23:59:59+00'",
            "'10000-01-01 00:00:00+00'",
            "'9999-12-31 23:59:59.999999+00'",
            "'1969-12-31 23:59:59+00'",
            "'0001-01-01 00:00:00+00'",
        ];
        const BYTES: &'static [&'static str] =
            &["NULL", "'\\x'", "'\\x00'", "'\\xff'", "decode(repeat('ff', 100000), 'hex')"];
        const LENIENT: &'static str = "SELECT 1";

        fn columns_sql(table: &str) -> String {
            format!(
                "SELECT column_name || '|' || udt_name FROM information_schema.columns WHERE table_name = '{table}' \
             AND is_generated = 'NEVER' AND COALESCE(identity_generation, '') <> 'ALWAYS' ORDER BY ordinal_position"
            )
        }

        /// Checks each index against its table with PostgreSQL's `amcheck`.
        async fn damage(conn: &mut Self::Connection, tables: &[String]) -> Result<Vec<String>, sqlx::Error> {
            Self::execute_sql(conn, "CREATE EXTENSION IF NOT EXISTS amcheck").await?;
            let names: Vec<String> = tables.iter().map(|table| format!("'{table}'")).collect();
            let indexes = format!(
                "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
             JOIN pg_class t ON t.oid = i.indrelid JOIN pg_am a ON a.oid = c.relam \
             WHERE a.amname = 'btree' AND i.indisvalid AND t.relname IN ({})",
                names.join(", ")
            );
            let mut damage = Vec::new();
            for index in Self::texts(conn, &indexes).await? {
                let checked =
                    Self::execute_sql(conn, &format!("SELECT bt_index_check('{index}', true)")).await;
                match checked {
                    Err(sqlx::Error::Database(error)) => damage.push(format!("{index}: {error}")),
                    checked => drop(checked?),
                }
            }
            Ok(damage)
        }
    }
);
test_database!(MySql, mysql, |columns| format!("CAST({} AS CHAR)", concat_ws(columns)), {
    const TIMES: &'static [&'static str] = &[
        "NULL",
        "'0000-00-00 00:00:00'",
        "'2024-02-31 00:00:00'",
        "'1000-01-01 00:00:00'",
        "'0001-01-01 00:00:00'",
        "'1969-12-31 23:59:59'",
        "'9999-12-31 23:59:59.999999'",
    ];
    const BYTES: &'static [&'static str] = &["NULL", "''", "x'00'", "x'ff'", "REPEAT(x'ff', 100000)"];
    // Allows zero dates and out-of-range numbers.
    const LENIENT: &'static str = "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'";

    fn columns_sql(table: &str) -> String {
        format!(
            "SELECT CAST(CONCAT(column_name, '|', data_type) AS CHAR) FROM information_schema.columns \
             WHERE table_schema = DATABASE() AND table_name = '{table}' AND extra NOT LIKE '%GENERATED%' \
             ORDER BY ordinal_position"
        )
    }

    async fn damage(conn: &mut Self::Connection, tables: &[String]) -> Result<Vec<String>, sqlx::Error> {
        let sql = format!("CHECK TABLE {}", tables.join(", "));
        let rows = raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?;
        let mut damage = Vec::new();
        for row in rows {
            let text = |column: usize| -> Result<String, sqlx::Error> { row.try_get(column) };
            let (table, kind, message) = (text(0)?, text(2)?, text(3)?);
            if kind.eq_ignore_ascii_case("error") || kind == "status" && message != "OK" {
                damage.push(format!("{table}: {message}"));
            }
        }
        Ok(damage)
    }
});
test_database!(
    Sqlite,
    sqlite,
    |columns| {
        let columns: Vec<String> = columns.iter().map(|column| format!("COALESCE({column}, '')")).collect();
        format!("'' || {}", columns.join(" || '|' || "))
    },
    {
        const TIMES: &'static [&'static str] = &[
            "NULL",
            "'0000-00-00 00:00:00'",
            "'2024-02-31 25:61:61'",
            "'9999-99-99 99:99:99'",
            "'9999-12-31 23:59:59.999'",
            "'1969-12-31 23:59:59'",
            "'aaaa-aa-aa aa:aa:aa'",
            "'2024-01-01 00:00:00+99:99'",
            "'2024-01-01 00:00:00.123456789123'",
            "''",
            "'infinity'",
        ];
        const BYTES: &'static [&'static str] = &["NULL", "x''", "x'00'", "x'ff'", "zeroblob(100000)"];
        const LENIENT: &'static str = "SELECT 1";

        fn columns_sql(table: &str) -> String {
            format!("SELECT name || '|' || type FROM pragma_table_info('{table}')")
        }

        async fn damage(conn: &mut Self::Connection, _: &[String]) -> Result<Vec<String>, sqlx::Error> {
            let reports = Self::texts(conn, "PRAGMA integrity_check").await?;
            Ok(reports.into_iter().filter(|text| text != "ok").collect())
        }

        fn repeated(bytes: u32) -> String {
            format!("replace(hex(zeroblob({})), '0', 'x')", bytes / 2)
        }

        fn joined(texts: &[&str]) -> String {
            texts.join(" || ")
        }
    }
);

/// Calls a function that is generic over the database with the database type that a URL names.
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
