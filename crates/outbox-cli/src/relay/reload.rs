//! Reload on SIGHUP: reads the settings file again, and applies settings that can change while the
//! relay runs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::health::SharedHealth;
use super::json_lines::BrokenPipe;
use super::publishers::Publishers;
use super::routing_table::{RoutingTable, SharedRoutingTable};
use crate::config::Config;

/// State that a reload changes: routes and their publishers.
pub(crate) struct Reloadable {
    pub(crate) file: Option<PathBuf>,
    /// Database URL if the file names none.
    pub(crate) fallback_url: Option<String>,
    pub(crate) config: Config,
    pub(crate) publishers: Publishers,
    pub(crate) routing_table: SharedRoutingTable,
    pub(crate) broken_pipe: Arc<BrokenPipe>,
    pub(crate) health: SharedHealth,
}

impl Reloadable {
    /// Reads the file again. If it has mistakes, logs them and changes nothing.
    pub(crate) fn reload(&mut self) {
        let Some(file) = &self.file else { return };
        let shown = file.display().to_string();
        let new = match Config::open(file, self.fallback_url.as_deref()) {
            Ok(config) => config,
            Err(error) => {
                for mistake in error.mistakes() {
                    tracing::error!("{mistake}");
                }
                tracing::error!("cannot reload {shown}: settings stay unchanged");
                return;
            }
        };
        for warning in &new.warnings {
            tracing::warn!("{}", warning.in_file(&shown));
        }
        let publishers = match Publishers::new(&new, &self.publishers, &self.broken_pipe) {
            Ok(publishers) => publishers,
            Err(error) => {
                tracing::error!("cannot reload {shown}: {error:#}: settings stay unchanged");
                return;
            }
        };
        self.warn_about_restart(&new, &publishers);
        self.routing_table.set(RoutingTable::new(&new, &publishers));
        let changed: Vec<&str> = publishers.changed(&self.publishers).collect();
        tracing::info!(
            routes = new.routes.len(),
            publishers = new.publishers.len(),
            changed = changed.join(", "),
            "{shown} reloaded"
        );
        self.health.set_publishers(&publishers);
        (self.config.routes, self.config.publishers) = (new.routes, new.publishers);
        self.publishers = publishers;
    }

    fn warn_about_restart(&self, new: &Config, publishers: &Publishers) {
        for name in self.config.fixed_parts_that_differ(new) {
            tracing::warn!("`{name}` has changed: the change takes effect after a restart");
        }
        let of_topics: BTreeSet<&str> =
            self.config.topics.iter().flat_map(|topic| &topic.to).map(|to| to.get_ref().as_str()).collect();
        let changed = publishers.changed(&self.publishers);
        let removed = of_topics.iter().copied().filter(|name| publishers.publisher(name).is_none());
        for name in changed.filter(|name| of_topics.contains(name)).chain(removed) {
            tracing::warn!(
                "publisher `{name}` has changed: routes use the new settings now, topics after a restart"
            );
        }
    }
}
