//! `outbox migrate`: creates or upgrades the tables, or prints the SQL that does.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;
use outbox::escape::is_unsafe;
use outbox::{DatabaseKind, DatabaseRole, Error, StoreOptions, grants_sql, migration_sql, open_store};

use crate::database::{DatabaseUrl, Tables};
use crate::{Usage, say};

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

    /// Print the GRANT statements that a role needs, instead of migrating. No server is needed, as with --print
    #[arg(long, value_enum, value_name = "ROLE", conflicts_with = "print")]
    print_grants: Option<GrantRole>,

    /// The role or user that gets the rights, instead of outbox_ROLE; for MySQL and MariaDB as user@host
    #[arg(long, value_name = "NAME", requires = "print_grants")]
    role_name: Option<String>,
}

/// A way of using the tables.
#[derive(Clone, Copy, ValueEnum)]
enum GrantRole {
    /// Inserts events, by SQL or with `outbox send`; reads no payload
    Writer,
    /// Runs a relay, with the dashboard and repairs at the command line
    Relay,
    /// Looks, and changes nothing
    Viewer,
    /// Creates and upgrades the tables
    Migrator,
}

impl GrantRole {
    fn role(self) -> (DatabaseRole, &'static str) {
        match self {
            GrantRole::Writer => (DatabaseRole::Writer, "outbox_writer"),
            GrantRole::Relay => (DatabaseRole::Relay, "outbox_relay"),
            GrantRole::Viewer => (DatabaseRole::Viewer, "outbox_viewer"),
            GrantRole::Migrator => (DatabaseRole::Migrator, "outbox_migrator"),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  outbox migrate --database sqlite:shop.db
  outbox migrate --schema billing                        DATABASE_URL says where
  outbox migrate --table billing_events
  outbox migrate --print --database postgres > 0007_outbox.sql
  outbox migrate --print-grants relay --role-name shop_relay --database postgres | psql shop

It is safe to run at every deployment: tables that are up to date are left alone.";

pub(crate) async fn run(options: &Options) -> Result<ExitCode> {
    let (kind, tables) = options.tables.options(2)?;
    let sql = migration_sql(kind, &tables)?;
    if let Some(role) = options.print_grants {
        let (role, default) = role.role();
        let name = options.role_name.as_deref().unwrap_or(default);
        if name.is_empty() || name.contains(is_unsafe) {
            return Err(Usage("--role-name: no role has such a name".to_owned()).into());
        }
        say(grants_sql(kind, &tables, role, name)?.trim_end());
    } else if options.print {
        say(for_client(kind, &sql).trim_end());
    } else {
        let database = DatabaseUrl::parse(&options.tables.database)?;
        let done = migrate(&database, &tables, version(&sql)).await?;
        say(format_args!("{database}: table {} {done}", options.tables.table));
    }
    Ok(ExitCode::SUCCESS)
}

/// The script as the client of its server reads it. Those of MySQL and MariaDB end a statement at the
/// first `;`, unless they are told of another delimiter, which the servers themselves do not know.
fn for_client(kind: DatabaseKind, sql: &str) -> String {
    let Some((before, trigger)) = sql.split_once("CREATE TRIGGER").filter(|_| kind == DatabaseKind::MySql)
    else {
        return sql.to_owned();
    };
    let trigger = trigger.trim_end().trim_end_matches(';');
    format!("{before}DELIMITER //\nCREATE TRIGGER{trigger}//\nDELIMITER ;\n")
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
