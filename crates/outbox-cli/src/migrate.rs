//! `outbox migrate`: creates or upgrades the tables, or prints the SQL that does.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;
use outbox::escape::is_unsafe;
use outbox::{
    DatabaseKind, DatabaseRole, Error, StoreOptions, grants_sql, migration_sql, migration_sql_from,
    open_store,
};

use crate::database::{DatabaseUrl, Tables};
use crate::{Usage, print_escaped};

/// Create or upgrade the tables, or print the SQL that does
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    tables: Tables,

    /// Print the SQL instead of running it: for your own migrations. Needs no server; --database
    /// may be just the kind: sqlite, postgres or mysql
    #[arg(long)]
    print: bool,

    /// Version of the tables to upgrade: print only the statements that are missing there. `outbox
    /// databases` shows the version; 0 is a database without the tables
    #[arg(long, value_name = "VERSION", requires = "print", allow_negative_numbers = true)]
    from: Option<i64>,

    /// Print the GRANT statements that a role needs, instead of migrating. Needs no server, as with
    /// --print
    #[arg(long, value_enum, value_name = "ROLE", conflicts_with = "print")]
    print_grants: Option<GrantRole>,

    /// Role or user to grant to, instead of outbox_ROLE; for MySQL and MariaDB as user@host
    #[arg(long, value_name = "NAME", requires = "print_grants")]
    role_name: Option<String>,
}

/// Roles that `--print-grants` knows.
#[derive(Clone, Copy, ValueEnum)]
enum GrantRole {
    /// Inserts events, by SQL or with `outbox send`; cannot read payloads
    Writer,
    /// Runs a relay with its dashboard, and repairs at the command line
    Relay,
    /// Reads only
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
  outbox migrate --schema billing                        in DATABASE_URL
  outbox migrate --table billing_events
  outbox migrate --print --database postgres > 0007_outbox.sql
  outbox migrate --print --from 9 --database postgres > 0012_outbox_upgrade.sql
  outbox migrate --print-grants relay --role-name shop_relay --database postgres | psql shop

Safe to run at every deployment: tables that are up to date are not changed.";

pub(crate) async fn run(options: &MigrateArgs) -> Result<ExitCode> {
    let (kind, tables) = options.tables.options(2)?;
    let sql = migration_sql(kind, &tables)?;
    if let Some(role) = options.print_grants {
        let (role, default) = role.role();
        let name = options.role_name.as_deref().unwrap_or(default);
        if name.is_empty() || name.contains(is_unsafe) {
            return Err(Usage("--role-name: is empty or contains control characters".to_owned()).into());
        }
        print_escaped(grants_sql(kind, &tables, role, name)?.trim_end());
    } else if options.print {
        let sql = match migration_sql_from(kind, &tables, options.from.unwrap_or(0)) {
            Err(error @ Error::UnknownSchemaVersion { .. }) => {
                return Err(Usage(format!("--from: {error}")).into());
            }
            printed => printed?,
        };
        print_escaped(for_client(kind, &sql).trim_end());
    } else {
        let database = DatabaseUrl::parse(&options.tables.database)?;
        let done = migrate(&database, &tables, version(&sql)).await?;
        print_escaped(format_args!("{database}: table {} {done}", options.tables.table));
    }
    Ok(ExitCode::SUCCESS)
}

/// Adapts the script to the server's command-line client. The clients of MySQL and MariaDB end a
/// statement at the first `;`, unless `DELIMITER` sets another one, which the servers do not know.
fn for_client(kind: DatabaseKind, sql: &str) -> String {
    let Some((before, trigger)) = sql.split_once("CREATE TRIGGER").filter(|_| kind == DatabaseKind::MySql)
    else {
        return sql.to_owned();
    };
    let trigger = trigger.trim_end().trim_end_matches(';');
    format!("{before}DELIMITER //\nCREATE TRIGGER{trigger}//\nDELIMITER ;\n")
}

/// Migrates, and returns a description of the change.
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
    store.check_schema().await.context("the migration succeeded, but the schema check failed")?;
    Ok(format!("migrated{from} to version {newest}"))
}

/// Returns the schema version that the script ends at: each step begins with a line that names its
/// version.
pub(crate) fn version(sql: &str) -> &str {
    sql.lines().filter_map(|line| line.strip_prefix("-- version ")).next_back().unwrap_or("?")
}
