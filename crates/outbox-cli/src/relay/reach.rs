//! Tries what the settings name, without starting a relay.

use std::sync::Arc;

use anyhow::Result;
use outbox::open_store;

use super::discovery::Query;
use super::lines::Gone;
use super::outlets::Outlets;
use crate::config::{Config, Source};
use crate::database::{DatabaseUrl, Tables};

/// What was tried, and what came of it.
type Tried = (String, Result<String>);

/// Each database: whether it can be reached, and has the tables.
pub(crate) async fn databases(config: &Config) -> Vec<Tried> {
    let mut tried = Vec::new();
    match &config.source {
        Source::One(database) => {
            let url = database.url.as_ref().map(|url| url.get_ref().expose()).unwrap_or_default();
            let tables = Tables::new(url, database.table(), database.schema());
            tried.push(("database".to_owned(), one(&tables, "`url` of `[database]`").await));
        }
        Source::Several(databases) => {
            for database in databases {
                let tables =
                    Tables::new(database.url.get_ref().expose(), database.table(), database.schema());
                let what = format!("database {}", database.name.get_ref().as_str());
                tried.push((what, one(&tables, "`url` of `[[databases]]`").await));
            }
        }
        Source::Discovered(discovery) => {
            let found = async {
                let url =
                    DatabaseUrl::parse(discovery.url.get_ref().expose())?.called("`url` of `[discovery]`");
                let query = Query::new(url, discovery.query.as_str());
                query.ask().await.map_err(|error| query.explain(&error))
            };
            match found.await {
                Err(error) => tried.push(("discovery".to_owned(), Err(error))),
                Ok(rows) => {
                    tried.push(("discovery".to_owned(), Ok(format!("names {} databases", rows.len()))));
                    for (name, url) in rows {
                        let tables = Tables::new(&url, None, None);
                        let what = format!("database {name}");
                        tried.push((what, one(&tables, "its URL").await));
                    }
                }
            }
        }
    }
    tried
}

async fn one(tables: &Tables, setting: &'static str) -> Result<String> {
    let (_, options) = tables.options(1)?;
    let url = DatabaseUrl::parse(&tables.database)?.called(setting);
    let explain = |error| url.explain_outbox(error);
    url.probe().await?;
    let store = open_store(url.secret(), &options).await.map_err(explain)?;
    store.check_schema().await.map_err(explain)?;
    Ok(format!("{url} answers, and its tables are up to date"))
}

/// Each publisher: its name, its transport, and whether it can be reached.
pub(crate) async fn publishers(
    config: &Config,
    gone: &Arc<Gone>,
) -> Result<Vec<(String, &'static str, bool)>> {
    Ok(Outlets::new(config, &Outlets::default(), gone)?.ask().await)
}
