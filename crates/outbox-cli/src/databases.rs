//! `outbox databases`: several databases side by side: what they are, and whether they can be used.

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
use crate::open::is_there;
use crate::show::{Table, dash, json, number, short, span_of, status};
use crate::{Usage, note};

/// List databases: kind, version of the tables, backlog, and whether they can be reached
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A database, or NAME=URL to give it a name; several times for several
    // The value may hold a password: never shown in the help.
    #[arg(
        long = "database",
        env = "DATABASE_URL",
        hide_env_values = true,
        value_name = "[NAME=]URL",
        required = true,
        value_delimiter = None
    )]
    databases: Vec<String>,

    /// Ask the database for the others: a query that answers with name and URL, run on the one --database that is given
    #[arg(long, value_name = "SQL")]
    discover: Option<String>,

    /// The table of the events
    #[arg(long, default_value = "outbox_event", value_name = "NAME")]
    table: String,

    /// The schema (PostgreSQL) or database (MySQL) of the tables, instead of the connection's own
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,

    /// How many databases to ask at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    at_once: u32,

    /// Print JSON for programs: one object a line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox databases --database shop=postgres://ada@db/shop --database crm=mysql://root@10.0.0.7/crm
  outbox databases --database postgres://ada@db/directory --discover 'SELECT name, url FROM tenant'
  outbox databases --database sqlite:shop.db --json | jq 'select(.state != \"ok\")'

States: ok, failing (a relay reports that it fails to take or settle events), unreachable, not migrated, too old, too new.

Exit codes: 0 all can be used, 1 some are not ok, 2 wrong usage, 3 no databases.";

/// What was found out about a database.
#[derive(Serialize)]
struct View {
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

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let named = named(&options).await?;
    if named.is_empty() {
        note("The discovery query answers with no database.");
        return Ok(crate::nothing());
    }
    let mut tables = StoreOptions::default().table(&options.table).max_connections(1);
    if let Some(schema) = &options.schema {
        tables = tables.schema(schema);
    }
    // A database that does not answer must not keep the others waiting.
    let turns = Arc::new(Semaphore::new(options.at_once as usize));
    let mut asked = JoinSet::new();
    for (n, (name, url)) in named.into_iter().enumerate() {
        let (turns, tables) = (turns.clone(), tables.clone());
        asked.spawn(async move {
            let _turn = turns.acquire_owned().await;
            (n, ask(name, &url, &tables).await)
        });
    }
    let mut views = asked.join_all().await;
    views.sort_by_key(|(n, _)| *n);
    let views: Vec<View> = views.into_iter().map(|(_, view)| view).collect();
    show(&views, options.json)?;
    let all_well = views.iter().all(|view| view.state == "ok");
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The databases that were given, or that the one given knows of.
async fn named(options: &Options) -> Result<Vec<(String, DatabaseUrl)>> {
    let mut named = Vec::new();
    for given in &options.databases {
        // A name has no colon, every URL has one.
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
        Err(_) => Err(Usage("--discover asks one database: give --database once".to_owned()).into()),
    }
}

async fn ask(name: String, url: &DatabaseUrl, tables: &StoreOptions) -> View {
    let kind = match url.kind() {
        DatabaseKind::Postgres => "postgres",
        DatabaseKind::MySql => "mysql",
        _ => "sqlite",
    };
    let mut view = View {
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
    if let Err((state, problem)) = look(url, tables, &mut view).await {
        view.state = state;
        view.problem = Some(problem.lines().next().unwrap_or_default().to_owned());
    }
    view
}

async fn look(
    url: &DatabaseUrl,
    tables: &StoreOptions,
    view: &mut View,
) -> Result<(), (&'static str, String)> {
    let unreachable = |error: anyhow::Error| ("unreachable", error.to_string());
    is_there(url).map_err(unreachable)?;
    url.probe().await.map_err(unreachable)?;
    let told = |error| unreachable(url.explain_outbox(error));
    let newest = migration_sql(url.kind(), tables).map_err(told)?;
    let store = open_store(url.secret(), tables).await.map_err(told)?;
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
                _ => return Err(told(error)),
            };
            return Err((state, error.to_string()));
        }
    }
    let backlog = store.backlog().await.map_err(told)?;
    view.pending = Some(backlog.pending);
    view.free = Some(backlog.free);
    view.oldest_due_ms = backlog.oldest_due.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let nodes = store.nodes().await.map_err(told)?;
    failing(&nodes).map_or(Ok(()), |problem| Err(("failing", problem)))
}

/// What the relays that run report as failing, the first of it.
fn failing(nodes: &[Node]) -> Option<String> {
    nodes.iter().filter(|node| node.is_running()).find_map(|node| {
        let problem = node.state.health.problems().next()?;
        Some(format!("relay {} {problem}", node.node))
    })
}

fn show(views: &[View], as_json: bool) -> Result<()> {
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
