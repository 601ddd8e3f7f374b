//! SIGHUP: reads the settings file again, and takes over what can change while the relay runs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::health::SharedHealth;
use super::lines::Gone;
use super::outlets::Outlets;
use super::table::{Switch, Table};
use crate::config::Config;

/// What can change: routes, and the publishers that they go to.
pub(crate) struct Changeable {
    pub(crate) file: Option<PathBuf>,
    /// The database if the file names none.
    pub(crate) otherwise: Option<String>,
    pub(crate) config: Config,
    pub(crate) outlets: Outlets,
    pub(crate) switch: Switch,
    pub(crate) gone: Arc<Gone>,
    pub(crate) health: SharedHealth,
}

impl Changeable {
    /// Reads the file again. What is wrong with it is logged, and everything stays as it is.
    pub(crate) fn reload(&mut self) {
        let Some(file) = &self.file else { return };
        let shown = file.display().to_string();
        let new = match Config::open(file, self.otherwise.as_deref()) {
            Ok(config) => config,
            Err(error) => {
                for mistake in error.mistakes() {
                    tracing::error!("{mistake}");
                }
                tracing::error!("{shown} was read again and is wrong: everything stays as it was");
                return;
            }
        };
        for warning in &new.warnings {
            tracing::warn!("{}", warning.in_file(&shown));
        }
        let outlets = match Outlets::new(&new, &self.outlets, &self.gone) {
            Ok(outlets) => outlets,
            Err(error) => {
                tracing::error!("{shown}: {error:#}: everything stays as it was");
                return;
            }
        };
        self.name_what_needs_a_restart(&new, &outlets);
        self.switch.set(Table::new(&new, &outlets));
        let changed: Vec<&str> = outlets.changed(&self.outlets).collect();
        tracing::info!(
            routes = new.routes.len(),
            publishers = new.publishers.len(),
            changed = changed.join(", "),
            "{shown} was read again"
        );
        self.health.set_outlets(&outlets);
        (self.config.routes, self.config.publishers) = (new.routes, new.publishers);
        self.outlets = outlets;
    }

    fn name_what_needs_a_restart(&self, new: &Config, outlets: &Outlets) {
        for name in self.config.fixed_parts_that_differ(new) {
            tracing::warn!("`{name}` has changed: that needs a restart, and is as before until then");
        }
        let of_topics: BTreeSet<&str> =
            self.config.topics.iter().flat_map(|topic| &topic.to).map(|to| to.get_ref().as_str()).collect();
        let changed = outlets.changed(&self.outlets);
        let gone = of_topics.iter().copied().filter(|name| outlets.publisher(name).is_none());
        for name in changed.filter(|name| of_topics.contains(name)).chain(gone) {
            tracing::warn!(
                "the publisher `{name}` has changed: topics go to it as before until a restart, routes as they say now"
            );
        }
    }
}
