//! Tries what the settings name, without starting a relay.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use outbox::{Error, open_store};

use super::discovery::{Allowed, Query};
use super::lines::Gone;
use super::outlets::{Asked, Outlets};
use crate::config::{Config, Source};
use crate::database::{DatabaseUrl, Tables};

/// What was tried, and what came of it.
type Tried = (String, Result<String>);

/// Each database: whether it can be reached, and has the tables.
pub(crate) async fn databases(config: &Config) -> Vec<Tried> {
    let mut tried = Vec::new();
    let migrates = config.groups.general.migrate == Some(true);
    match &config.source {
        Source::One(database) => {
            let url = database.url().unwrap_or_default();
            let tables = Tables::new(url, database.table(), database.schema());
            tried.push(("database".to_owned(), one(&tables, "`url` of `[database]`", migrates).await));
        }
        Source::Several(databases) => {
            for database in databases {
                let tables =
                    Tables::new(database.url.get_ref().expose(), database.table(), database.schema());
                let what = format!("database {}", database.name.get_ref().as_str());
                tried.push((what, one(&tables, "`url` of `[[databases]]`", migrates).await));
            }
        }
        Source::Discovered(discovery) => {
            let found = async {
                let url =
                    DatabaseUrl::parse(discovery.url.get_ref().expose())?.called("`url` of `[discovery]`");
                let allowed = Allowed::new(&discovery.allow, discovery.hosts.as_deref());
                let query = Query::new(url, discovery.query.as_str(), allowed);
                query.ask().await.map_err(|error| query.explain(&error))
            };
            match found.await {
                Err(error) => tried.push(("discovery".to_owned(), Err(error))),
                Ok((rows, refused)) => {
                    tried.push(("discovery".to_owned(), Ok(format!("names {} databases", rows.len()))));
                    for (name, reason) in refused {
                        tried.push((format!("database {name}"), Err(anyhow!("not served: {reason}"))));
                    }
                    for (name, url) in rows {
                        let tables = Tables::new(&url, None, None);
                        let what = format!("database {name}");
                        tried.push((what, one(&tables, "its URL", migrates).await));
                    }
                }
            }
        }
    }
    tried
}

/// `migrates`: the relay creates the tables when it starts, so that they need not be there yet.
async fn one(tables: &Tables, setting: &'static str, migrates: bool) -> Result<String> {
    let (_, options) = tables.options(1)?;
    let url = DatabaseUrl::parse(&tables.database)?.called(setting);
    let explain = |error| url.explain_outbox(error);
    url.probe().await?;
    let store = open_store(url.secret(), &options).await.map_err(explain)?;
    match store.check_schema().await {
        Err(Error::NotMigrated { .. } | Error::SchemaTooOld { .. }) if migrates => {
            return Ok(format!("{url} answers, and the relay will create or update its tables"));
        }
        checked => checked.map_err(explain)?,
    }
    Ok(format!("{url} answers, and its tables are up to date"))
}

/// Asks each publisher for its health: whether its server can be reached, and stream, exchange, topic and
/// permission are there, as far as that can be told without an event.
pub(crate) async fn publishers(config: &Config, gone: &Arc<Gone>) -> Result<Vec<Asked>> {
    Ok(Outlets::new(config, &Outlets::default(), gone)?.ask().await)
}
