//! `outbox migrate`: creates or upgrades the tables, or prints the SQL that does.

use std::process::ExitCode;

use anyhow::{Context, Result};
use outbox::{Error, StoreOptions, migration_sql, open_store};

use crate::database::{DatabaseUrl, Tables};
use crate::say;

/// Create or upgrade the tables, or print the SQL that does
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(flatten)]
    tables: Tables,

    /// Print the SQL instead of running it: for your own migrations. No server is needed, and of the database its kind will do:
    /// sqlite, postgres or mysql
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
    let (kind, tables) = options.tables.options(2)?;
    let sql = migration_sql(kind, &tables)?;
    if options.print {
        say(sql.trim_end());
    } else {
        let database = DatabaseUrl::parse(&options.tables.database)?;
        let done = migrate(&database, &tables, version(&sql)).await?;
        say(format_args!("{database}: table {} {done}", options.tables.table));
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
pub(crate) fn version(sql: &str) -> &str {
    sql.lines().filter_map(|line| line.strip_prefix("-- version ")).next_back().unwrap_or("?")
}
