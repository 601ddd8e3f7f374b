//! Tests the databases and publishers of the settings, without starting a relay.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use outbox::{Error, open_store};

use super::discovery::{Allowed, DiscoveryQuery};
use super::json_lines::BrokenPipe;
use super::publishers::{PublisherHealth, Publishers};
use crate::config::{Config, Source};
use crate::database::{DatabaseUrl, Tables};

/// Name of a tested item, and its result.
type CheckResult = (String, Result<String>);

/// Tests whether each database can be reached, and has the tables.
pub(crate) async fn databases(config: &Config) -> Vec<CheckResult> {
    let mut results = Vec::new();
    let migrates = config.groups.general.migrate == Some(true);
    match &config.source {
        Source::One(database) => {
            let url = database.url().unwrap_or_default();
            let tables = Tables::new(url, database.table(), database.schema());
            results
                .push(("database".to_owned(), check_one(&tables, "`url` of `[database]`", migrates).await));
        }
        Source::Several(databases) => {
            for database in databases {
                let tables =
                    Tables::new(database.url.get_ref().expose(), database.table(), database.schema());
                let what = format!("database {}", database.name.get_ref().as_str());
                results.push((what, check_one(&tables, "`url` of `[[databases]]`", migrates).await));
            }
        }
        Source::Discovered(discovery) => {
            let found = async {
                let url = DatabaseUrl::parse(discovery.url.get_ref().expose())?
                    .with_setting("`url` of `[discovery]`");
                let allowed = Allowed::new(&discovery.allow, discovery.hosts.as_deref());
                let query = DiscoveryQuery::new(url, discovery.query.as_str(), allowed);
                query.run().await.map_err(|error| query.explain(&error))
            };
            match found.await {
                Err(error) => results.push(("discovery".to_owned(), Err(error))),
                Ok((rows, refused)) => {
                    results.push(("discovery".to_owned(), Ok(format!("returns {} databases", rows.len()))));
                    for (name, reason) in refused {
                        results.push((format!("database {name}"), Err(anyhow!("not served: {reason}"))));
                    }
                    for (name, url) in rows {
                        let tables = Tables::new(&url, None, None);
                        let what = format!("database {name}");
                        results.push((what, check_one(&tables, "its URL", migrates).await));
                    }
                }
            }
        }
    }
    results
}

/// Tests one database. With `migrates` the relay creates the tables at start, so that they may be
/// missing.
async fn check_one(tables: &Tables, setting: &'static str, migrates: bool) -> Result<String> {
    let (_, options) = tables.options(1)?;
    let url = DatabaseUrl::parse(&tables.database)?.with_setting(setting);
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

/// Checks the health of each publisher: whether its server can be reached, and stream, exchange,
/// topic and permission exist, as far as that can be checked without an event.
pub(crate) async fn publishers(
    config: &Config,
    broken_pipe: &Arc<BrokenPipe>,
) -> Result<Vec<PublisherHealth>> {
    Ok(Publishers::new(config, &Publishers::default(), broken_pipe)?.check_health().await)
}
