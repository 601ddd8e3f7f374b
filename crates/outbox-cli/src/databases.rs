//! `outbox databases`: lists several databases with their state.

mod discover;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use outbox::store::Node;
use outbox::{DatabaseKind, Error, StoreOptions, migration_sql, open_store};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::database::DatabaseUrl;
use crate::migrate::version;
use crate::output::{Table, dash, json, number, short, span_of, status};
use crate::target::require_sqlite_file;
use crate::{Usage, eprint_escaped};

/// List databases with kind, state, schema version and backlog
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DatabasesArgs {
    /// A database, or NAME=URL to give it a name; can be repeated
    // The value may contain a password: hidden in the help.
    #[arg(
        long = "database",
        env = "DATABASE_URL",
        hide_env_values = true,
        value_name = "[NAME=]URL",
        required = true,
        value_delimiter = None
    )]
    databases: Vec<String>,

    /// Find the databases by a query that returns name and URL, run on the one --database that is
    /// given
    #[arg(long, value_name = "SQL")]
    discover: Option<String>,

    /// The table of the events
    #[arg(long, default_value = "outbox_event", value_name = "NAME")]
    table: String,

    /// The schema (PostgreSQL) or database (MySQL) of the tables, instead of the connection's own
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,

    /// Number of databases to query concurrently
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    at_once: u32,

    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox databases --database shop=postgres://ada@db/shop --database crm=mysql://root@10.0.0.7/crm
  outbox databases --database postgres://ada@db/directory --discover 'SELECT name, url FROM tenant'
  outbox databases --database sqlite:shop.db --json | jq 'select(.state != \"ok\")'

States: ok, failing (a relay reports that it fails to take or settle events), unreachable, not migrated, too old, too new.

Exit codes: 0 all are ok, 1 some are not ok, 2 wrong usage, 3 no databases.";

/// State of a database; also its JSON form.
#[derive(Serialize)]
struct DatabaseView {
    name: String,
    database: String,
    kind: &'static str,
    state: &'static str,
    schema_version: Option<i64>,
    pending: Option<u64>,
    free: Option<u64>,
    oldest_due_ms: Option<u64>,
    problem: Option<String>,
}

pub(crate) async fn run(options: DatabasesArgs) -> Result<ExitCode> {
    let named = named(&options).await?;
    if named.is_empty() {
        eprint_escaped("The discovery query returned no database.");
        return Ok(crate::exit_nothing());
    }
    let mut tables = StoreOptions::default().table(&options.table).max_connections(1);
    if let Some(schema) = &options.schema {
        tables = tables.schema(schema);
    }
    // Concurrent: a database that does not answer must not delay the others.
    let permits = Arc::new(Semaphore::new(options.at_once as usize));
    let mut tasks = JoinSet::new();
    for (n, (name, url)) in named.into_iter().enumerate() {
        let (permits, tables) = (permits.clone(), tables.clone());
        tasks.spawn(async move {
            let _permit = permits.acquire_owned().await;
            (n, inspect(name, &url, &tables).await)
        });
    }
    let mut views = tasks.join_all().await;
    views.sort_by_key(|(n, _)| *n);
    let views: Vec<DatabaseView> = views.into_iter().map(|(_, view)| view).collect();
    show(&views, options.json)?;
    let all_well = views.iter().all(|view| view.state == "ok");
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Databases of the command line, or those that the discovery query returns.
async fn named(options: &DatabasesArgs) -> Result<Vec<(String, DatabaseUrl)>> {
    let mut named = Vec::new();
    for given in &options.databases {
        // A name has no colon, and every URL has one.
        let (name, url) = match given.split_once('=') {
            Some((name, url)) if !name.contains(':') => (Some(name), url),
            _ => (None, given.as_str()),
        };
        let url = DatabaseUrl::parse(url)?;
        named.push((name.map_or_else(|| url.to_string(), str::to_owned), url));
    }
    let Some(query) = &options.discover else { return Ok(named) };
    match <[_; 1]>::try_from(named) {
        Ok([(_, directory)]) => discover::run(&directory, query).await,
        Err(_) => Err(Usage("--discover queries one database: give --database once".to_owned()).into()),
    }
}

async fn inspect(name: String, url: &DatabaseUrl, tables: &StoreOptions) -> DatabaseView {
    let kind = match url.kind() {
        DatabaseKind::Postgres => "postgres",
        DatabaseKind::MySql => "mysql",
        _ => "sqlite",
    };
    let mut view = DatabaseView {
        name,
        database: url.to_string(),
        kind,
        state: "ok",
        schema_version: None,
        pending: None,
        free: None,
        oldest_due_ms: None,
        problem: None,
    };
    if let Err((state, problem)) = read_state(url, tables, &mut view).await {
        view.state = state;
        view.problem = Some(problem.lines().next().unwrap_or_default().to_owned());
    }
    view
}

async fn read_state(
    url: &DatabaseUrl,
    tables: &StoreOptions,
    view: &mut DatabaseView,
) -> Result<(), (&'static str, String)> {
    let unreachable = |error: anyhow::Error| ("unreachable", error.to_string());
    require_sqlite_file(url).map_err(unreachable)?;
    url.probe().await.map_err(unreachable)?;
    let unreachable_outbox = |error| unreachable(url.explain_outbox(error));
    let newest = migration_sql(url.kind(), tables).map_err(unreachable_outbox)?;
    let store = open_store(url.secret(), tables).await.map_err(unreachable_outbox)?;
    match store.check_schema().await {
        Ok(()) => view.schema_version = version(&newest).parse().ok(),
        Err(error) => {
            let state = match &error {
                Error::NotMigrated { .. } => "not migrated",
                Error::SchemaTooOld { found, .. } => {
                    view.schema_version = Some(*found);
                    "too old"
                }
                Error::SchemaTooNew { found, .. } => {
                    view.schema_version = Some(*found);
                    "too new"
                }
                _ => return Err(unreachable_outbox(error)),
            };
            return Err((state, error.to_string()));
        }
    }
    let backlog = store.backlog().await.map_err(unreachable_outbox)?;
    view.pending = Some(backlog.pending);
    view.free = Some(backlog.free);
    view.oldest_due_ms = backlog.oldest_due.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let nodes = store.nodes().await.map_err(unreachable_outbox)?;
    first_problem(&nodes).map_or(Ok(()), |problem| Err(("failing", problem)))
}

/// First problem that a running relay reports.
fn first_problem(nodes: &[Node]) -> Option<String> {
    nodes.iter().filter(|node| node.is_running()).find_map(|node| {
        let problem = node.state.health.problems().next()?;
        Some(format!("relay {} {problem}", node.node))
    })
}

fn show(views: &[DatabaseView], as_json: bool) -> Result<()> {
    if as_json {
        return views.iter().try_for_each(json);
    }
    let mut table = Table::new([
        "NAME",
        "KIND",
        "STATE",
        "#SCHEMA",
        "#PENDING",
        "#FREE",
        "#OLDEST DUE",
        "DATABASE",
        "PROBLEM",
    ]);
    for view in views {
        let count = |n: Option<u64>| n.map_or_else(dash, number);
        let oldest = view.oldest_due_ms.map(|ms| span_of(std::time::Duration::from_millis(ms)));
        table.row([
            (if view.name == view.database { "-" } else { view.name.as_str() }).into(),
            view.kind.into(),
            status(view.state),
            view.schema_version.map_or_else(dash, |version| version.to_string()).into(),
            count(view.pending).into(),
            count(view.free).into(),
            oldest.unwrap_or_else(dash).into(),
            view.database.as_str().into(),
            view.problem.as_deref().map_or_else(dash, |problem| short(problem, 200)).into(),
        ]);
    }
    table.print();
    Ok(())
}
