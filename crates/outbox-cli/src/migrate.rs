//! `outbox migrate`: creates or upgrades the tables, or prints the SQL that does.

use std::process::ExitCode;

use anyhow::{Context, Result};
use outbox::{DatabaseKind, Error, StoreOptions, migration_sql, open_store};

use crate::database::{self, DatabaseUrl};
use crate::{Usage, say};

/// Create or upgrade the tables, or print the SQL that does
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The database: sqlite:FILE, postgres://… or mysql://… (also for MariaDB)
    ///
    /// With --print the scheme alone will do: sqlite, postgres or mysql.
    // The value may hold a password: never shown in the help.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database: String,

    /// The table of the events; the other tables' names start with it
    #[arg(long, default_value = "outbox_event", value_name = "NAME")]
    table: String,

    /// The schema (PostgreSQL) or database (MySQL) of the tables, instead of the connection's own
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,

    /// Print the SQL instead of running it: for your own migrations. No server is needed
    #[arg(long)]
    print: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox migrate --database sqlite:shop.db
  outbox migrate --database postgres://ada:secret@db/shop --schema billing
  DATABASE_URL=mysql://root@127.0.0.1/shop outbox migrate --table billing_events
  outbox migrate --print --database postgres > 0007_outbox.sql

It is safe to run at every deployment: tables that are up to date are left alone.";

pub(crate) async fn run(options: &Options) -> Result<ExitCode> {
    let kind = database::kind(&options.database)?;
    if kind == DatabaseKind::Sqlite && options.schema.is_some() {
        return Err(Usage("SQLite has no schemas: leave --schema out".to_owned()).into());
    }
    let mut tables = StoreOptions::default().table(&options.table).max_connections(2);
    if let Some(schema) = &options.schema {
        tables = tables.schema(schema);
    }
    // The names are checked here, before anything is connected.
    let sql = match migration_sql(kind, &tables) {
        Err(error @ Error::Identifier { .. }) => return Err(Usage(error.to_string()).into()),
        sql => sql?,
    };
    if options.print {
        say(sql.trim_end());
    } else {
        let database = DatabaseUrl::parse(&options.database)?;
        let done = migrate(&database, &tables, version(&sql)).await?;
        say(format_args!("{database}: table {} {done}", options.table));
    }
    Ok(ExitCode::SUCCESS)
}

/// Migrates, and says what that meant.
async fn migrate(database: &DatabaseUrl, tables: &StoreOptions, newest: &str) -> Result<String> {
    let explain = |error| database.explain_outbox(error);
    database.probe().await?;
    let store = open_store(database.secret(), tables).await.map_err(explain)?;
    let from = match store.check_schema().await {
        Ok(()) => return Ok(format!("is already at version {newest}")),
        Err(Error::NotMigrated { .. }) => String::new(),
        Err(Error::SchemaTooOld { found, .. }) => format!(" from version {found}"),
        Err(error) => return Err(explain(error)),
    };
    store.migrate().await.map_err(explain)?;
    store
        .check_schema()
        .await
        .context("the migration went through, but the tables are not as they should be")?;
    Ok(format!("migrated{from} to version {newest}"))
}

/// The version that the script brings the tables to, which it names above each of its steps.
fn version(sql: &str) -> &str {
    sql.lines().filter_map(|line| line.strip_prefix("-- version ")).next_back().unwrap_or("?")
}
