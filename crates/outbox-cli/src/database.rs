//! The `--database` setting: its kind of database, its display without secrets, and hints for its
//! errors.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, anyhow};
use outbox::settings::file::{Scheme, url_or_file};
use outbox::{DatabaseKind, StoreOptions};
use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;

use crate::Usage;

/// Flags that name a database and its tables.
#[derive(clap::Args)]
pub(crate) struct Tables {
    /// The database: sqlite:FILE, postgres://… or mysql://… (also for MariaDB), or @FILE that
    /// contains such a URL
    // The value may contain a password: hidden in the help.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL", value_parser = url_or_file)]
    pub(crate) database: String,

    /// The table of the events; the names of the other tables are derived from it
    #[arg(long, default_value = "outbox_event", value_name = "NAME")]
    pub(crate) table: String,

    /// The schema (PostgreSQL) or database (MySQL) of the tables, instead of the connection's own
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,
}

impl Tables {
    /// Builds the arguments from settings instead of flags.
    pub(crate) fn new(database: &str, table: Option<&str>, schema: Option<&str>) -> Self {
        Self {
            database: database.to_owned(),
            table: table.unwrap_or("outbox_event").to_owned(),
            schema: schema.map(str::to_owned),
        }
    }

    /// Kind of the database, and options for its store. Checks the names; does not connect.
    pub(crate) fn options(&self, connections: u32) -> Result<(DatabaseKind, StoreOptions)> {
        let kind = kind(&self.database)?;
        if kind == DatabaseKind::Sqlite && self.schema.is_some() {
            return Err(Usage("SQLite has no schemas: remove --schema".to_owned()).into());
        }
        let mut options = StoreOptions::default().table(&self.table).max_connections(connections);
        if let Some(schema) = &self.schema {
            options = options.schema(schema);
        }
        match outbox::migration_sql(kind, &options) {
            Err(error @ outbox::Error::Identifier { .. }) => Err(Usage(error.to_string()).into()),
            checked => {
                checked?;
                Ok((kind, options))
            }
        }
    }
}

/// Time limit for connecting to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A database URL. Its `Display` form omits user and password.
pub(crate) struct DatabaseUrl {
    url: String,
    kind: DatabaseKind,
    /// Name of the setting, for hints.
    setting: &'static str,
}

/// Default name of the setting in messages.
pub(crate) const FLAG: &str = "--database (or DATABASE_URL)";

impl DatabaseUrl {
    /// Parses the setting. Does not connect.
    pub(crate) fn parse(url: &str) -> Result<Self, Usage> {
        let kind = kind_of_scheme(Scheme::of_url(url))?;
        Ok(Self { url: url.to_owned(), kind, setting: FLAG })
    }

    /// Replaces the name of the setting in messages.
    pub(crate) fn with_setting(self, setting: &'static str) -> Self {
        Self { setting, ..self }
    }

    pub(crate) fn kind(&self) -> DatabaseKind {
        self.kind
    }

    /// The URL with user and password: for connecting, not for display.
    pub(crate) fn secret(&self) -> &str {
        &self.url
    }

    /// Connect options for PostgreSQL.
    pub(crate) fn postgres(&self) -> Result<PgConnectOptions, sqlx::Error> {
        outbox::connect::postgres(&self.url).map_err(url_error)
    }

    /// Connect options for MySQL or MariaDB.
    pub(crate) fn mysql(&self) -> Result<MySqlConnectOptions, sqlx::Error> {
        outbox::connect::mysql(&self.url).map_err(url_error)
    }

    /// Why the server is not verified with this URL, if it is not.
    pub(crate) fn unverified(&self) -> Option<&'static str> {
        outbox::connect::unverified(&self.url)
    }

    /// Connects once, to report the cause of a failure at once: a pool retries for long, and then
    /// only reports that it got no connection.
    pub(crate) async fn probe(&self) -> Result<()> {
        let probe = async {
            match self.kind {
                DatabaseKind::Postgres => drop(self.postgres()?.connect().await?),
                DatabaseKind::MySql => drop(self.mysql()?.connect().await?),
                // For SQLite the error of the store is clear enough.
                _ => {}
            }
            Ok(())
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, probe).await {
            Ok(connected) => connected.map_err(|error| self.explain(&error)),
            Err(_) => Err(anyhow!(
                "the server of {self} does not answer within {} seconds\n\
                 hint: check host and port in {}, and firewalls",
                CONNECT_TIMEOUT.as_secs(),
                self.setting
            )),
        }
    }

    /// Turns a database error into one with a hint about the setting.
    pub(crate) fn explain(&self, error: &sqlx::Error) -> anyhow::Error {
        let at = self.setting;
        if let Some(advice) = outbox::connect::tls_advice(error) {
            return anyhow!("no verified connection to {self}: {error}\nhint: {advice} (in {at})");
        }
        let (problem, hint) = match error {
            sqlx::Error::Configuration(why) => (
                format!("cannot read the database URL {self}: {why}"),
                "write the characters / ? # @ % of a user or password as %2F %3F %23 %40 %25".to_owned(),
            ),
            sqlx::Error::Io(why) => (
                format!("cannot reach the server of {self}: {why}"),
                format!("check that the server runs, and host and port in {at}"),
            ),
            sqlx::Error::Database(why) => {
                let code = why.code().unwrap_or_default();
                let hint = match &*code {
                    "28P01" | "28000" => format!("check user and password in {at}"),
                    "3D000" => format!("create the database first, or correct its name in {at}"),
                    "42000" if why.message().contains("Unknown database") => {
                        format!("create the database first, or correct its name in {at}, or --schema")
                    }
                    "3F000" => "create the schema first, or correct --schema".to_owned(),
                    "42501" => missing_right(why.message()),
                    _ if is_denied(&**why) => missing_right(why.message()),
                    "14" => "check that the folder of the file exists and is writable".to_owned(),
                    "8" => "the file is not writable".to_owned(),
                    "26" => "the file exists but is not a SQLite database: use another file".to_owned(),
                    _ => format!("check {at}"),
                };
                (format!("{self} refuses: {}", why.message()), hint)
            }
            other => (format!("{self}: {other}"), format!("check {at}")),
        };
        anyhow!("{problem}\nhint: {hint}")
    }

    /// Like [`DatabaseUrl::explain`], for errors of the library: only those of the database get a
    /// hint.
    pub(crate) fn explain_outbox(&self, error: outbox::Error) -> anyhow::Error {
        match error {
            outbox::Error::Database(e) => self.explain(e.inner()),
            outbox::Error::Url { reason, .. } => self.explain(&sqlx::Error::Configuration(reason.into())),
            other => other.into(),
        }
    }
}

/// Turns an error about a URL into the driver's error for a wrong configuration.
fn url_error(error: outbox::Error) -> sqlx::Error {
    match error {
        outbox::Error::Url { reason, .. } => sqlx::Error::Configuration(reason.into()),
        other => sqlx::Error::Configuration(other.to_string().into()),
    }
}

/// Whether an argument contains a URL with a password.
pub(crate) fn has_password(argument: &str) -> bool {
    let Some((_, rest)) = argument.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    user.split_once(':').is_some_and(|(_, password)| !password.is_empty()) || rest.contains("password=")
}

/// Hint for a missing right. The server's message names the table, or the right and the table.
fn missing_right(message: &str) -> String {
    let to_create = ["schema", "CREATE command", "ALTER command", "INDEX command", "must be owner"];
    if to_create.iter().any(|words| message.contains(words)) {
        return "`outbox migrate --print-grants migrator` prints the grants that a migration needs, `outbox migrate --print` \
                the SQL for a user who has them"
            .to_owned();
    }
    "a right is missing: `outbox migrate --print-grants ROLE` prints the GRANT statements for the owner of the tables to \
     run; ROLE is writer, relay, viewer or migrator"
        .to_owned()
}

/// Whether MySQL or MariaDB refused a statement because a right is missing: on a database, a table,
/// a column or a routine.
fn is_denied(error: &dyn sqlx::error::DatabaseError) -> bool {
    error
        .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
        .is_some_and(|error| matches!(error.number(), 1044 | 1142 | 1143 | 1370))
}

/// Kind of database by the scheme of its URL; the scheme alone is enough.
pub(crate) fn kind(url: &str) -> Result<DatabaseKind, Usage> {
    kind_of_scheme(Scheme::of(url))
}

fn kind_of_scheme(scheme: Result<Scheme, String>) -> Result<DatabaseKind, Usage> {
    let kind = scheme.and_then(|scheme| {
        scheme.kind().ok_or_else(|| "names a database that this binary was built without".to_owned())
    });
    kind.map_err(|reason| Usage(format!("{FLAG} {reason}")))
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.url.split_once("://") else {
            // A SQLite file, shown without its parameters.
            return f.write_str(self.url.split('?').next().unwrap_or_default());
        };
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if tail.contains('@') {
            // Most likely a password that was not escaped, whose end cannot be determined.
            return write!(f, "{scheme}://…");
        }
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let path = tail.split(['?', '#']).next().unwrap_or_default();
        write!(f, "{scheme}://{host}{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_displayed_url_contains_no_secret() {
        for (url, shown) in [
            ("postgres://ada:s3cret@db:5432/shop?password=x", "postgres://db:5432/shop"),
            ("mysql://root@127.0.0.1/test", "mysql://127.0.0.1/test"),
            ("postgres://a:p@ss@db/x", "postgres://db/x"),
            ("postgres://ada:s3/cret@db/x", "postgres://…"),
            ("postgres://ada:s3?cret@db/x", "postgres://…"),
            ("postgres://db/x?password=s3@cret", "postgres://…"),
            ("sqlite:app.db", "sqlite:app.db"),
            ("sqlite://app.db?mode=rwc", "sqlite://app.db"),
        ] {
            assert_eq!(DatabaseUrl::parse(url).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_password_on_the_command_line_is_found() {
        for argument in
            ["postgres://ada:s3cret@db/x", "--database=mysql://ada:x@db", "main=postgres://db/x?password=x"]
        {
            assert!(has_password(argument), "{argument}");
        }
        for argument in
            ["postgres://ada@db:5432/x", "sqlite:shop.db", "--database", "http://localhost:8080/a@b", "a:b@c"]
        {
            assert!(!has_password(argument), "{argument}");
        }
    }

    #[test]
    fn an_invalid_url_is_refused_and_not_displayed() {
        for url in ["ada:s3cret@db/shop", "postgres:ada:s3cret@db/shop", "s3cret", ""] {
            let Err(usage) = DatabaseUrl::parse(url) else { panic!("{url:?} was accepted") };
            assert!(!usage.to_string().contains("s3cret"), "{usage}");
        }
    }
}
